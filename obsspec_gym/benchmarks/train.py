"""Is something learnt? GRPO from the shipped policy on phrasings it never saw, measured on held-out tasks.

Three families in their held-out phrasings. The policy solves some of their tasks, and often one of them only now and
then; of others it solves nearly all or none, and a group whose members all did the same teaches nothing. It is trained
on task indices from 10,000 on and measured on fixed indices below, one sample a task at temperature 1, with the same
noise before and after.

Speculation changes how long a training takes and nothing else (``bench loops`` measures that); here the tools are made
short instead (``work``), and there is none.
"""

from __future__ import annotations

import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.training.config import TrainConfig, parse_config
from obsspec_gym.training.grpo import ObsSpecGRPOTrainer
from obsspec_gym.training.log import read_log
from obsspec_gym.training.plot import plot_learning
from obsspec_gym.training.rollout import name_episodes
from obsspec_gym.training.training import Training

DEFAULTS: dict[str, Any] = {
    "suite": "terminal/archive+permissions+count:templates",
    "seeds": "0",
    "steps": 80,
    "tasks": 16,
    "group": 8,
    "rank": 16,
    "learning_rate": 5e-4,
    "warmup": 6,
    "evaluation": 200,
    "envs": 8,
    "work": 0.05,
    "sandbox": "bubblewrap",
    "driver": "process",
    "policy": "shipped",
    "out": "runs/bench_train",
}
FULL: dict[str, Any] = {"seeds": "0,1,2"}

_FIRST = 10_000
"""Tasks are trained on from this index on, and measured on below."""


def run(*, seeds: str, evaluation: int, out: str, report: Callable[[str], None], **options: Any) -> dict[str, Any]:
    """One training a seed, each from the same policy.

    Args:
        seeds: Of the trainings, separated by commas: which tasks, in which order, and every completion.
        evaluation: How many tasks it is measured on, from index 0 on.
        out: Where results go as seeds are finished, with each training's log and a picture of all.
        report: Is told about progress.
        **options: ``suite`` (where tasks come from), ``steps`` (of the optimiser), ``tasks`` a step, ``group``
            (episodes a task), ``rank`` (of the adapters that are trained, LoRA's; 0 trains all weights),
            ``learning_rate`` (it rises in ``warmup`` steps and falls linearly to 0), ``envs`` (sandboxes at a time),
            ``work``, ``sandbox``, ``driver`` (of the policy's engine) and ``policy``.

    Returns:
        ``reward_before``, ``reward_after`` and ``reward_gain``, means over the seeds; ``by_seed`` with the same of
        each, by family too, and the seconds it took.
    """
    numbers = _read_seeds(seeds)
    if evaluation < 1 or options["steps"] < 1:
        raise InvalidArgumentError(f"evaluation and steps must be >= 1, got {evaluation} and {options['steps']}")
    folder = Path(out)
    results: list[dict[str, Any]] = []
    for seed in numbers:
        one = _OneSeed(seed, evaluation, folder / f"seed_{seed}", options, report)
        results.append(one.train())
        summary = _summary(options["suite"], results)
        (folder / "result.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
        draw(folder)
    return summary


def draw(folder: Path) -> Path:
    """Draws the curves of the trainings in an output directory, and what they come to; returns the picture's path."""
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    seeds = result["by_seed"]
    families = {
        name: tuple(statistics.fmean(seed["families"][name][when] for seed in seeds) for when in ("before", "after"))
        for name in seeds[0]["families"]
    } | {"all": (result["reward_before"], result["reward_after"])}
    logs = [read_log(folder / f"seed_{seed['seed']}") for seed in seeds]
    return plot_learning(logs, families, folder / "learning.png", f"GRPO from the shipped policy: {result['suite']}")


@dataclass(frozen=True)
class _OneSeed:
    seed: int
    evaluation: int
    out: Path
    options: dict[str, Any]
    report: Callable[[str], None]

    def train(self) -> dict[str, Any]:
        training = Training(self._config())
        with training.trainer([_Report(self.seed, self.report)]) as trainer:
            started = time.perf_counter()
            before = self._solve(trainer)
            self.report(f"seed {self.seed}: {before['all']:.3f} before")
            trained_from = time.perf_counter()
            trainer.train()
            trained = time.perf_counter() - trained_from
            after = self._solve(trainer)
            self.report(f"seed {self.seed}: {before['all']:.3f} before, {after['all']:.3f} after")
        return {
            "seed": self.seed,
            "reward_before": before["all"],
            "reward_after": after["all"],
            "reward_gain": after["all"] - before["all"],
            "families": {name: {"before": before[name], "after": after[name]} for name in before if name != "all"},
            "training_seconds": trained,
            "seconds": time.perf_counter() - started,
        }

    def _config(self) -> TrainConfig:
        steps, tasks, group, rank = (self.options[name] for name in ("steps", "tasks", "group", "rank"))
        lora = {"r": rank, "lora_alpha": 2 * rank, "target_modules": "all-linear"}
        return parse_config(
            {
                "policy": self.options["policy"],
                "lora": lora if rank else None,  # most of what all weights would learn of so few rewards is noise
                "suite": self.options["suite"],
                "work": self.options["work"],
                "tasks": {"first": _FIRST + self.seed * steps * tasks, "count": steps * tasks},
                "terminals": {"num_envs": self.options["envs"], "sandbox": self.options["sandbox"]},
                "world_model": {"source": "none"},
                "speculation": {"depth": 0},
                "engine": {"options": {"driver": self.options["driver"]}},
                "grpo": {
                    "output_dir": str(self.out),
                    "use_cpu": True,
                    "bf16": False,
                    "activation_checkpointing": False,
                    "seed": self.seed,
                    "max_steps": steps,
                    "per_device_train_batch_size": group,
                    "gradient_accumulation_steps": tasks,
                    "num_generations": group,
                    "max_completion_length": 1024,
                    "learning_rate": self.options["learning_rate"],
                    "warmup_steps": self.options["warmup"],
                    "loss_type": "grpo",  # an episode that ran on for ever weighs like any other
                    "scale_rewards": "group",
                    "save_strategy": "no",
                },
            }
        )

    def _solve(self, trainer: ObsSpecGRPOTrainer) -> dict[str, float]:
        """Mean reward of the policy as it is, in all and by family."""
        episodes = name_episodes(range(self.evaluation), trainer.suite)
        batch = trainer.rollouts.play(episodes, run_seed=_FIRST, policy_step=0)
        rewards = defaultdict[str, list[float]](list)
        for trajectory in batch.collection.trajectories:
            rewards["all"].append(trajectory.reward)
            rewards[_family(trajectory.episode.task_id)].append(trajectory.reward)
        return {name: statistics.fmean(values) for name, values in rewards.items()}


def _family(task_id: str) -> str:
    """``count`` for ``basics/count:templates/3@0.05``."""
    return task_id.split("/")[1].split(":")[0]


class _Report(TrainerCallback):
    """Tells the mean reward of every step."""

    def __init__(self, seed: int, report: Callable[[str], None]) -> None:
        self._seed, self._report = seed, report

    def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """An entry was logged."""
        entry = state.log_history[-1]
        if "reward" in entry:
            self._report(
                f"seed {self._seed}: step {state.global_step} of {state.max_steps}, reward {entry['reward']:.3f}, "
                f"{entry['step_time']:.1f} s"
            )


def _read_seeds(text: str) -> list[int]:
    try:
        numbers = [int(number) for number in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 0:
        raise InvalidArgumentError(f"seeds must be integers >= 0, separated by commas, got {text!r}")
    return numbers


def _summary(suite: str, results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    means = {
        name: statistics.fmean(result[name] for result in results)
        for name in ("reward_before", "reward_after", "reward_gain")
    }
    return {"suite": suite, "seeds": len(results), **means, "by_seed": list(results)}
