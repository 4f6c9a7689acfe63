"""One real GRPO step: TRL, a real model, real terminals."""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from obsspec_gym.agents.world_model.memory import MemoryWorldModel
from obsspec_gym.envs.terminal import TerminalEnv
from obsspec_gym.errors import ClosedError, InvalidArgumentError
from obsspec_gym.speculation.selector import FixedSelector, Off
from tests.training.parts import Breaking, DigitEnv, DigitSuite

pytest.importorskip("trl")

from obsspec_gym.training.arguments import check_whole_weights
from obsspec_gym.training.dataset import task_dataset
from obsspec_gym.training.grpo import ObsSpecGRPOTrainer
from tests.training.trainers import (
    GROUP,
    TASKS,
    Recorder,
    Workshop,
    config,
    greedy,
    logged,
    moved,
    reference,
    rows,
    tokens,
    weights,
)

# TRL uses a name that transformers has replaced.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")

LATENCY = "lognormal:0.02,1.0"  # episodes end in another order than they begin in


@dataclass(frozen=True)
class Stepped:
    """A trainer that has made one step, and what its weights were before."""

    trainer: Recorder
    before: dict[str, torch.Tensor]
    version: int


@pytest.fixture(scope="module")
def stepped(pretrained: Any, tokenizer: Any, sandbox: str, tmp_path_factory: Any) -> Iterator[Stepped]:
    """In real terminals, with speculation."""
    workshop = Workshop(copy.deepcopy(pretrained), tokenizer, tmp_path_factory.mktemp("step"))
    terminal = functools.partial(TerminalEnv, DigitSuite(), sandbox=sandbox, latency=LATENCY)
    trainer = workshop(terminal, world_model=MemoryWorldModel())
    before, version = weights(trainer), trainer.engine.weights_version
    trainer.train()
    yield Stepped(trainer, before, version)
    workshop.close()


def test_rows_are_the_episodes_of_the_prompts_in_their_order(stepped: Stepped) -> None:
    trainer = stepped.trainer
    assert trainer.asked == [TASKS[0]] * GROUP + [TASKS[1]] * GROUP
    names = [episode.episode.task_id for episode in trainer.trajectories]
    assert names == [f"digits/{task}" for task in trainer.asked]
    assert [episode.episode.sample for episode in trainer.trajectories] == 2 * list(range(GROUP))
    for row, episode in enumerate(trainer.trajectories):
        assert tokens(trainer.batch, row, "prompt") == list(episode.prompt_ids)
        assert tokens(trainer.batch, row, "completion") == list(episode.completion_ids)
    assert len({episode.completion_ids for episode in trainer.trajectories}) > 1


def test_rewards_are_the_environments_and_the_users(stepped: Stepped) -> None:
    entry = stepped.trainer.state.log_history[0]
    rewards = [episode.reward for episode in stepped.trainer.trajectories]
    assert entry["rewards/environment_reward/mean"] == pytest.approx(sum(rewards) / len(rewards))
    assert entry["rewards/by_member/mean"] == pytest.approx(0.5)
    assert entry["rollout/turns"] == sum(len(episode.steps) for episode in stepped.trainer.trajectories)
    assert entry["rollout/unscored"] == 0


def test_the_optimiser_steps_and_the_engine_follows(stepped: Stepped) -> None:
    trainer = stepped.trainer
    assert torch.isfinite(trainer.loss)
    assert set(moved(stepped.before, weights(trainer))) == set(stepped.before)
    assert trainer.engine.weights_version > stepped.version
    for episode in trainer.trajectories[::GROUP]:
        prompt = list(episode.history.parent.token_ids)
        assert greedy(trainer, prompt) == reference(trainer, prompt)


def test_only_what_the_policy_sampled_carries_gradient(stepped: Stepped) -> None:
    trainer = stepped.trainer
    assert trainer.logps is not None
    assert trainer.logps.grad is not None
    sampled = torch.zeros_like(trainer.logps, dtype=torch.bool)
    expected = torch.zeros_like(trainer.logps)
    by_tokens = {tuple(episode.completion_ids): episode for episode in trainer.trajectories}
    for row in range(len(sampled)):  # the trainer has shuffled them
        episode = by_tokens[tuple(tokens(trainer.inputs, row, "completion"))]
        at = 0
        for event in episode.history.events[1:]:
            stop = at + len(event.segment)
            if event.is_action:
                sampled[row, at:stop] = True
                logprobs = episode.steps[event.turn - 1].completion.logprobs
                expected[row, at:stop] = torch.tensor(logprobs)
            at = stop
    assert 0 < sampled.sum() < trainer.inputs["completion_mask"].sum()
    learns = trainer.inputs["advantages"].ne(0)[:, None] & sampled
    assert learns.any()
    torch.testing.assert_close(trainer.logps.grad.ne(0), learns)

    # The trainer computes, for the same tokens, the logprobs they were sampled with.
    torch.testing.assert_close(trainer.logps.detach()[sampled], expected[sampled], atol=1e-4, rtol=0)
    torch.testing.assert_close(trainer.inputs["sampling_per_token_logps"], expected)


def test_speculation_changes_nothing_of_the_batch(make: Workshop, pretrained: Any, sandbox: str) -> None:
    terminal = functools.partial(TerminalEnv, DigitSuite(), sandbox=sandbox)
    memory = MemoryWorldModel()
    ahead = make(terminal, world_model=memory, speculation=FixedSelector())  # however busy this machine is
    behind = make(terminal, model=copy.deepcopy(pretrained), world_model=memory, speculation=Off())
    batches = []
    for trainer in (behind, ahead):  # the memory has seen the first when the second plays
        trainer.model.train()
        batches.append(trainer._generate_and_score_completions([dict(row) for row in rows()]))
    assert not any(step.hit for episode in behind.trajectories for step in episode.steps)
    assert any(step.hit for episode in ahead.trajectories for step in episode.steps)
    assert batches[0].keys() == batches[1].keys()
    for key in batches[0]:
        torch.testing.assert_close(batches[0][key], batches[1][key], atol=1e-5, rtol=0)


def test_a_broken_episode_is_left_out(make: Workshop) -> None:
    trainer = make(lambda: Breaking(DigitEnv(), steps=(1,), resets=(2,)))
    before = weights(trainer)
    trainer.train()
    assert trainer.state.log_history[0]["rollout/unscored"] == pytest.approx(0.5)
    assert [episode.broken for episode in trainer.trajectories] == [False, True, True, False] * 2
    advantages = trainer.batch["advantages"].view(-1, GROUP)
    assert advantages[:, 1:3].eq(0).all()
    torch.testing.assert_close(advantages[:, 0], -advantages[:, 3])  # the baseline is of these two alone
    assert trainer.batch["tool_mask"].view(len(TASKS), GROUP, -1)[:, 1:3, 0].eq(0).all()
    assert torch.isfinite(trainer.loss)
    assert moved(before, weights(trainer))
    assert all(parameter.isfinite().all() for parameter in trainer.model.parameters())


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo"])
def test_a_batch_in_which_all_broke_trains_nothing(make: Workshop, loss_type: str, caplog: Any) -> None:
    everyone = tuple(range(GROUP))
    trainer = make(lambda: Breaking(DigitEnv(), resets=everyone), loss_type=loss_type)
    before = weights(trainer)
    trainer.train()
    assert logged(trainer, "loss") == [0.0]
    assert trainer.state.log_history[0]["grad_norm"] == 0.0
    assert moved(before, weights(trainer)) == []
    assert trainer.batch["completion_mask"].sum(dim=1).tolist() == [1] * len(trainer.asked)
    assert "this batch trains nothing" in caplog.text
    assert "no sandbox today" in caplog.text


def test_no_row_is_longer_than_its_limit(make: Workshop) -> None:
    limit = 8  # the first command is 3 tokens long, what it shows 7
    trainer = make(max_completion_length=limit)
    before = weights(trainer)
    trainer.train()
    lengths = trainer.batch["completion_mask"].sum(dim=1)
    assert 1 <= lengths.min() <= lengths.max() <= limit
    assert all(episode.truncated and not episode.broken for episode in trainer.trajectories)
    assert trainer.state.log_history[0]["rollout/unscored"] == 0
    assert torch.isfinite(trainer.loss)
    assert moved(before, weights(trainer))


def test_nothing_is_learnt_from_truncated_episodes_where_that_is_asked_for(make: Workshop) -> None:
    trainer = make(max_completion_length=8, mask_truncated_completions=True)
    before = weights(trainer)
    trainer.train()
    assert logged(trainer, "loss") == [0.0]
    assert moved(before, weights(trainer)) == []


def test_equal_rewards_give_no_gradient(make: Workshop) -> None:
    trainer = make(reward_funcs=lambda prompts, trajectory, **_: [-episode.reward for episode in trajectory])
    before = weights(trainer)
    trainer.train()
    assert trainer.batch["advantages"].eq(0).all()
    assert moved(before, weights(trainer)) == []


def test_steps_follow_each_other_and_evaluation_fits_between(make: Workshop) -> None:
    """The engine serves one event loop after the other; seeds differ by step, and evaluation has its own."""
    suite = DigitSuite()
    trainer = make(
        world_model=MemoryWorldModel(),
        max_steps=2,
        eval_dataset=task_dataset(suite, TASKS),
        eval_strategy="steps",
        eval_steps=1,
    )
    seen = []
    play = trainer.rollouts.play

    def watch(*args: Any, **kwargs: Any) -> Any:
        seen.append((kwargs["run_seed"], kwargs["policy_step"]))
        return play(*args, **kwargs)

    trainer.rollouts.play = watch  # type: ignore[method-assign]
    trainer.train()
    train, evaluation = seen[0][0], seen[1][0]
    assert train != evaluation
    assert seen == [(train, 0), (evaluation, 1), (train, 1), (evaluation, 2)]
    assert "eval_rewards/environment_reward/mean" in trainer.state.log_history[1]

    # The last batch was an evaluation: it was sampled with the weights that it is evaluated with.
    assert trainer.evaluated is not None
    inputs = trainer.inputs
    mask = inputs["completion_mask"] * inputs["tool_mask"]
    torch.testing.assert_close(trainer.evaluated * mask, inputs["sampling_per_token_logps"], atol=1e-4, rtol=0)


def test_terminals_are_made_for_a_suite_and_closed(model: Any, tokenizer: Any, sandbox: str, tmp_path: Path) -> None:
    def of_the_terminals() -> set[str]:
        return {thread.name for thread in threading.enumerate() if "environment" in thread.name}

    assert of_the_terminals() == set()
    with ObsSpecGRPOTrainer(
        model,
        args=config(tmp_path, max_completion_length=40),
        train_dataset=task_dataset("basics/config", (10_000, 10_001)),
        processing_class=tokenizer,
        suite="basics/config",
        num_envs=2,
        terminal_options={"sandbox": sandbox, "max_turns": 2},
        max_turn_tokens=8,
    ) as trainer:
        assert of_the_terminals() == set()
        trainer.train()
        assert len(of_the_terminals()) == 2
        assert trainer.state.log_history[0]["rollout/turns"] >= GROUP * 2
    assert of_the_terminals() == set()
    with pytest.raises(ClosedError):
        greedy(trainer, [0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"args": {"use_vllm": True}}, "use_vllm must be False"),
        ({"args": {"min_p": 0.1}}, "min_p must be None"),
        ({"args": {"repetition_penalty": 1.1}}, "repetition_penalty must be 1.0"),
        ({"args": {"generation_kwargs": {"num_beams": 2}}}, "generation_kwargs must be None"),
        ({"args": {"remove_unused_columns": True}}, "remove_unused_columns must be False"),
        ({"args": {"temperature": 0.0}}, "temperature must be > 0"),
        ({"args": {"max_completion_length": None}}, "max_completion_length"),
        ({"tools": [print]}, "tools cannot be combined"),
        ({"rollout_func": print}, "rollout_func cannot be combined"),
        ({"engine": "steam"}, "engine must be an engine or one of transformers, vllm, got 'steam'"),
        ({"suite": None}, "a suite or environments"),
        ({"suite": "no such suite"}, "unknown suite"),
        ({"train_dataset": {"prompt": ["hello"]}}, "column 'task'"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    from datasets import Dataset

    options = dict(options)
    dataset = Dataset.from_dict(options.pop("train_dataset", {"prompt": ["hello"], "task": [0]}))
    arguments = {"suite": "basics", "args": config(tmp_path, **options.pop("args", {}))} | options
    with pytest.raises(InvalidArgumentError, match=message):
        ObsSpecGRPOTrainer("no model is loaded", train_dataset=dataset, **arguments)


@pytest.mark.parametrize("kind", ["FSDP", "DEEPSPEED"])
def test_weights_must_be_whole_on_every_process(kind: str) -> None:
    check_whole_weights("MULTI_GPU")
    with pytest.raises(InvalidArgumentError, match=f"must hold all weights of the policy .* got {kind}"):
        check_whole_weights(kind)
