"""What a step trains on, token by token: each loss, several passes, accumulated gradients, and failures."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import torch

from tests.training.parts import Breaking, DigitEnv

pytest.importorskip("trl")

from trl.trainer.grpo_trainer import GRPOTrainer

from obsspec_gym.training.trl_hooks import RolloutTrainer, without_padding
from tests.training.trainers import (
    GROUP,
    TASKS,
    Saying,
    Workshop,
    assert_finite,
    by_member,
    logged,
    moved,
    weights,
)

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")

LIMIT = 64
LOSSES = ["grpo", "dr_grpo", "dapo"]


def sampled(inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """1.0 for the tokens the policy sampled, ``[row, token]``."""
    return (inputs["completion_mask"] * inputs["tool_mask"]).float()


@pytest.mark.parametrize("loss", LOSSES)
def test_every_sampled_token_is_pushed_as_its_loss_says(make: Workshop, loss: str) -> None:
    trainer = make(loss_type=loss, max_completion_length=LIMIT)
    trainer.train()
    assert trainer.logps is not None
    mask, advantages = sampled(trainer.inputs), trainer.inputs["advantages"][:, None]
    share = {
        "grpo": 1 / (mask.sum(dim=1, keepdim=True) * len(mask)),
        "dr_grpo": torch.tensor(1 / (len(mask) * LIMIT)),
        "dapo": 1 / mask.sum(),
    }[loss]
    assert trainer.logps.grad is not None
    torch.testing.assert_close(trainer.logps.grad, -advantages * mask * share)
    assert advantages.ne(0).any()


@pytest.mark.parametrize("loss", LOSSES)
def test_accumulated_gradients_make_the_same_step(make: Workshop, pretrained: Any, loss: str) -> None:
    linear = {"loss_type": loss, "max_steps": 2, "optim": "sgd", "learning_rate": 0.3}  # in the gradient
    whole = make(**linear)
    parts = make(
        **linear,
        model=copy.deepcopy(pretrained),
        per_device_train_batch_size=GROUP,
        gradient_accumulation_steps=len(TASKS),
    )
    before = weights(whole)
    for trainer in (whole, parts):
        trainer.train()
        assert trainer.batches == 2
    assert moved(before, weights(whole))
    for name, parameter in weights(parts).items():
        torch.testing.assert_close(parameter, weights(whole)[name], atol=2e-5, rtol=1e-4)


def test_a_batch_serves_several_steps_with_the_logprobs_it_was_sampled_with(make: Workshop) -> None:
    trainer = make(num_iterations=2, max_steps=4, epsilon=0.9)
    plays = []
    play = trainer.rollouts.play

    def watch(*args: Any, **kwargs: Any) -> Any:
        plays.append(kwargs["policy_step"])
        return play(*args, **kwargs)

    trainer.rollouts.play = watch  # type: ignore[method-assign]
    trainer.train()
    assert plays == [0, 2]
    mask = sampled(trainer.inputs)
    old, now = trainer.inputs["old_per_token_logps"], trainer.logps
    assert now is not None
    assert now.grad is not None
    torch.testing.assert_close(old * mask, trainer.inputs["sampling_per_token_logps"], atol=1e-4, rtol=0)
    ratio = (now.detach() - old).exp()
    assert (ratio * mask).max() > 1.001  # the fourth step is the second with these tokens
    share = 1 / (mask.sum(dim=1, keepdim=True) * len(mask))
    expected = -trainer.inputs["advantages"][:, None] * ratio * mask * share
    inside = (ratio - 1).abs() < 0.9
    torch.testing.assert_close((now.grad * inside), (expected * inside), atol=1e-7, rtol=1e-4)
    assert_finite(trainer)


def test_reward_functions_add_up_with_their_weights(make: Workshop) -> None:
    def tenth(prompts: Any, **_: Any) -> list[float]:
        return [0.1 * row for row in range(len(prompts))]

    trainer = make(reward_funcs=[by_member, tenth], reward_weights=[0.0, 1.0, 10.0], scale_rewards="none")
    trainer.train()
    rewards = torch.tensor([sample % 2 + row for row, sample in enumerate(list(range(GROUP)) * len(TASKS))])
    groups = rewards.view(-1, GROUP).float()
    torch.testing.assert_close(trainer.batch["advantages"].view(-1, GROUP), groups - groups.mean(dim=1, keepdim=True))
    assert logged(trainer, "rewards/tenth/mean") == [pytest.approx(0.35)]


def test_an_empty_command_is_an_action_like_any_other(make: Workshop, tokenizer: Any) -> None:
    """The policy ends its completion at once: one token, which is trained on."""
    trainer = make(engine=Saying([tokenizer.eos_token_id]))
    before = weights(trainer)
    trainer.train()
    assert all(len(episode.steps) == 3 for episode in trainer.trajectories)
    assert logged(trainer, "rollout/unscored") == [0]
    assert sampled(trainer.inputs).sum(dim=1).tolist() == [3] * len(trainer.asked)
    assert moved(before, weights(trainer))
    assert_finite(trainer)


def test_a_completion_without_tokens_trains_nothing(make: Workshop, caplog: Any) -> None:
    trainer = make(engine=Saying([]))
    before = weights(trainer)
    trainer.train()
    assert logged(trainer, "rollout/unscored") == [1]
    assert logged(trainer, "loss") == [0]
    assert moved(before, weights(trainer)) == []
    assert "this batch trains nothing" in caplog.text
    assert_finite(trainer)


class Talkative(DigitEnv):
    """Its first task is longer than the model's context of 256 tokens."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        observation, info = super().reset(seed=seed, options=options)
        return "%" * 300 if (options or {})["sample"] < 2 else observation, info


def test_a_prompt_over_the_limit_is_left_out(make: Workshop) -> None:
    trainer = make(Talkative)
    before = weights(trainer)
    trainer.train()
    assert logged(trainer, "rollout/unscored") == [0.5]
    assert [len(episode.steps) == 0 for episode in trainer.trajectories] == [True, True, False, False] * 2
    advantages = trainer.batch["advantages"].view(-1, GROUP)
    assert advantages[:, :2].eq(0).all()
    assert advantages[:, 2:].ne(0).all()
    assert moved(before, weights(trainer))
    assert_finite(trainer)


@pytest.mark.parametrize("iterations", [1, 2])
def test_nothing_is_nan_where_all_broke(make: Workshop, iterations: int) -> None:
    trainer = make(lambda: Breaking(DigitEnv(), steps=tuple(range(GROUP))), num_iterations=iterations, max_steps=2)
    before = weights(trainer)
    trainer.train()
    assert logged(trainer, "rollout/unscored") == [1] * (2 // iterations)
    assert moved(before, weights(trainer)) == []
    assert_finite(trainer)


@pytest.mark.parametrize("loss", LOSSES)
def test_padding_that_all_of_a_part_have_changes_nothing(make: Workshop, loss: str) -> None:
    """TRL pads to the longest of a generation batch; its parts are computed without what only others need."""
    trainer = make(loss_type=loss)
    trainer.train()
    inputs = {
        name: value[:GROUP] if isinstance(value, torch.Tensor) and value.dim() else value
        for name, value in trainer.inputs.items()
    }
    width = inputs["completion_ids"].shape[1]
    padded = {
        name: torch.nn.functional.pad(value, (0, 50))
        if isinstance(value, torch.Tensor) and value.dim() == 2 and not name.startswith("prompt")
        else value
        for name, value in inputs.items()
    }
    losses = [GRPOTrainer._compute_loss(trainer, trainer.model, part) for part in (inputs, padded)]
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(trainer._compute_loss(trainer.model, padded), losses[0])
    assert trainer.logps.shape[1] <= width
    assert without_padding(padded)["completion_ids"].shape[1] <= width


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("bonus", [0.0, 0.1])
def test_passes_of_a_part_make_the_gradient_that_one_pass_makes(make: Workshop, loss: str, bonus: float) -> None:
    trainer = make(loss_type=loss, entropy_coef=bonus)
    trainer.train()
    inputs = dict(trainer.inputs)
    inputs["advantages"] = inputs["advantages"].clone()
    inputs["advantages"][1::2] = 0.0
    gradients = []
    for compute in (RolloutTrainer._compute_loss, GRPOTrainer._compute_loss):
        trainer.model.zero_grad()
        if compute is GRPOTrainer._compute_loss:
            at_once = GRPOTrainer._get_per_token_logps_and_entropies
            trainer._get_per_token_logps_and_entropies = functools.partial(at_once, trainer)
        compute(trainer, trainer.model, inputs).backward()
        gradients.append({name: each.grad.clone() for name, each in trainer.model.named_parameters()})
    assert any(gradient.abs().max() > 1e-4 for gradient in gradients[0].values())
    for name, gradient in gradients[1].items():
        torch.testing.assert_close(gradients[0][name], gradient, atol=1e-6, rtol=1e-4)
