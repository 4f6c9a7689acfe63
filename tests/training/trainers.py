"""Trainers on a tiny model and three environments each, which remember what they did."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from trl import GRPOConfig

from obsspec_gym.agents.engine.base import Capabilities, EngineLoad
from obsspec_gym.agents.generation import Generation
from obsspec_gym.training.dataset import task_dataset
from obsspec_gym.training.grpo import ObsSpecGRPOTrainer
from obsspec_gym.types import Completion, Sampling
from tests.training.parts import DigitEnv, DigitSuite

GROUP, TASKS = 4, (2, 4)

OURS = (
    "callbacks",
    "engine",
    "eval_dataset",
    "model",
    "peft_config",
    "reward_funcs",
    "speculation",
    "strict",
    "world_model",
    "world_model_options",
)
"""Arguments of a trainer; all others are ``GRPOConfig``'s."""

_NAMES = {field.name for field in fields(GRPOConfig)}
_CHECKPOINTING = "activation_checkpointing" if "activation_checkpointing" in _NAMES else "gradient_checkpointing"
"""Transformers renamed it; vLLM comes with one that is older."""


def config(folder: Path, **changes: Any) -> GRPOConfig:
    """One step of two groups, with a loss whose gradient is easy to say."""
    options: dict[str, Any] = {
        "output_dir": str(folder),
        "use_cpu": True,
        "bf16": False,
        _CHECKPOINTING: False,
        "per_device_train_batch_size": GROUP * len(TASKS),
        "per_device_eval_batch_size": GROUP * len(TASKS),
        "num_generations": GROUP,
        "max_completion_length": 64,
        "max_steps": 1,
        "learning_rate": 1e-3,
        "loss_type": "grpo",
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "shuffle_dataset": False,
    }
    return GRPOConfig(**options | changes)


class Recorder(ObsSpecGRPOTrainer):
    """Remembers what came out of generation, and what the loss was computed of."""

    asked: list[Any]
    batch: dict[str, torch.Tensor]
    trajectories: list[Any]
    inputs: dict[str, torch.Tensor]
    logps: torch.Tensor | None = None
    evaluated: torch.Tensor | None = None
    loss: torch.Tensor
    batches = 0

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        self.batches += 1
        self.asked = [row["task"] for row in inputs]
        self.batch = super()._generate_and_score_completions(inputs)
        self.trajectories = [row["trajectory"] for row in inputs]
        return self.batch

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        logps, *others = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if logps.requires_grad:
            logps.retain_grad()
            self.logps = logps
        else:
            self.evaluated = logps
        return logps, *others

    def _compute_loss(self, model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        self.inputs = inputs
        self.loss = super()._compute_loss(model, inputs)
        return self.loss


def by_member(prompts: Sequence[Any], trajectory: Sequence[Any], **_: Any) -> list[float]:
    """A reward function of the user's: tells the members of a group apart, whatever they did."""
    assert len(trajectory) == len(prompts)
    return [float(episode.episode.sample % 2) for episode in trajectory]


class Workshop:
    """Makes trainers, and closes all of them."""

    def __init__(self, model: Any, tokenizer: Any, folder: Path) -> None:
        self.model, self.tokenizer, self.folder = model, tokenizer, folder
        self.opened: list[Any] = []

    def __call__(self, env: Callable[[], Any] = DigitEnv, *, kind: type[Recorder] = Recorder, **changes: Any) -> Any:
        envs = [env() for _ in range(3)]
        self.opened.extend(envs)
        ours = {name: changes.pop(name) for name in OURS if name in changes}
        trainer = kind(
            ours.pop("model", self.model),
            ours.pop("reward_funcs", by_member),
            config(self.folder, **changes),
            task_dataset(DigitSuite(), TASKS),
            processing_class=self.tokenizer,
            suite=DigitSuite(),
            environments=envs,
            max_turn_tokens=16,
            **ours,
        )
        self.opened.append(trainer)
        return trainer

    def close(self) -> None:
        for one in reversed(self.opened):
            one.close()


def weights(trainer: ObsSpecGRPOTrainer) -> dict[str, torch.Tensor]:
    """Copies of what is trained, by name."""
    return {name: parameter.detach().clone() for name, parameter in trainer.model.named_parameters()}


def moved(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> list[str]:
    """The names of what has changed."""
    return [name for name in before if not torch.equal(before[name], after[name])]


def logged(trainer: ObsSpecGRPOTrainer, name: str) -> list[float]:
    """What a trainer has logged under a name, in order."""
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def rows() -> list[dict[str, Any]]:
    """A generation batch as it comes from the dataset."""
    return [{"prompt": "Which digit?", "task": task} for task in TASKS for _ in range(GROUP)]


def greedy(trainer: ObsSpecGRPOTrainer, prompt: list[int]) -> list[int]:
    """What the engine generates."""
    stop = trainer.policy.sampling.stop_token_ids

    async def generate() -> list[int]:
        sampling = Sampling(temperature=0, max_tokens=24, stop_token_ids=stop)
        return list((await trainer.engine.submit(prompt, sampling, seed=0)).token_ids)

    return asyncio.run(generate())


def reference(trainer: ObsSpecGRPOTrainer, prompt: list[int]) -> list[int]:
    """What it is to generate, with the weights that the trainer has."""
    output = trainer.model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=24)
    return output[0, len(prompt) :].tolist()


def tokens(batch: dict[str, torch.Tensor], row: int, part: str) -> list[int]:
    """The tokens of a row without padding: of its prompt or its completion."""
    ids: list[int] = batch[f"{part}_ids"][row][batch[f"{part}_mask"][row].bool()].tolist()
    return ids


class Saying:
    """An engine that always says the same.

    Args:
        token_ids: What.
    """

    capabilities = Capabilities(addressed_noise=True, cancel=True, priority=True, drafts=True, logprobs=True)
    weights_version = 0

    def __init__(self, token_ids: Sequence[int]) -> None:
        self.token_ids = tuple(token_ids)
        self.updates = 0

    def submit(self, prompt_ids: Sequence[int], sampling: Sampling, seed: int, **_: Any) -> Generation:
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        future.set_result(Completion(self.token_ids, (-1.0,) * len(self.token_ids)))
        return Generation(future)

    def load(self) -> EngineLoad:
        return EngineLoad()

    def update_weights(self, weights: Any = None) -> int:
        self.updates += len(dict(weights)) > 0
        return self.updates

    def close(self) -> None:
        """Owns nothing."""


def assert_finite(trainer: ObsSpecGRPOTrainer) -> None:
    """There is no NaN: not in the weights, not in the logs."""
    assert all(parameter.isfinite().all() for parameter in trainer.model.parameters())
    for entry in trainer.state.log_history:
        assert all(math.isfinite(value) for value in entry.values() if isinstance(value, int | float)), entry
