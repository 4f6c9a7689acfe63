"""``obsspec train``: a training from its configuration, its progress, and at the end a table and a picture."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from obsspec_gym.cli.files import output_directory, write_json
from obsspec_gym.cli.tables import percent, seconds, shown
from obsspec_gym.errors import InvalidArgumentError, MissingExtraError
from obsspec_gym.speculation.agents import installed

for _module in ("torch", "transformers", "trl", "datasets", "pydantic", "yaml", "matplotlib"):
    if not installed(_module):
        raise MissingExtraError(_module, "train")

# What follows needs the extra, so it comes after the check that names what is missing: hence E402.
import yaml  # noqa: E402 - after the check
from transformers import TrainerCallback  # noqa: E402 - after the check
from transformers.utils.logging import disable_progress_bar  # noqa: E402 - after the check

from obsspec_gym.training.config import read_config  # noqa: E402 - after the check
from obsspec_gym.training.grpo_options import typed  # noqa: E402 - after the check
from obsspec_gym.training.log import Entry, read_log, series  # noqa: E402 - after the check
from obsspec_gym.training.plot import plot_training  # noqa: E402 - after the check
from obsspec_gym.training.training import Training  # noqa: E402 - after the check

_LAST = 10
"""Steps whose mean stands for the end of a training."""


def run_training(file: Path, settings: Sequence[str], *, dry_run: bool, resume: bool) -> dict[str, Any]:
    """Trains as a configuration says.

    Args:
        file: The configuration.
        settings: ``key=value`` words that replace what it says.
        dry_run: Check and show everything, and load nothing.
        resume: Go on from the last checkpoint.

    Returns:
        What ``--json`` prints.

    Raises:
        InvalidArgumentError: If something of the configuration is not what is expected, before anything is loaded.
    """
    training = Training(read_config(file, settings))
    if dry_run:
        return _show(training)
    if training.last_checkpoint is not None and not resume:
        raise InvalidArgumentError(f"{training.out} holds a training already: --resume goes on with it")
    if training.last_checkpoint is None and resume:
        raise InvalidArgumentError(f"there is no checkpoint in {training.out} to go on from")
    if training.grpo.process_index == 0:
        output_directory(training.out)
    disable_progress_bar()  # type: ignore[no-untyped-call]
    # At every step, of what TRL asks transformers: nobody here can do anything about it.
    warnings.filterwarnings("ignore", ".is_gradient_checkpointing. is deprecated", FutureWarning)
    with TrainingProgress() as progress, training.trainer([progress]) as trainer:
        trainer.train(resume_from_checkpoint=str(training.last_checkpoint) if resume else None)
        trainer.save_policy(str(training.out / "policy"))
        if not trainer.is_world_process_zero():
            return {}
        world_model = training.save_world_model(trainer)
    return _finish(training, file, world_model)


def _show(training: Training) -> dict[str, Any]:
    """The configuration as it was understood, GRPO's options as far as they differ from TRL's defaults."""
    grpo = _set_in(training.grpo) if training.not_here is None else typed(training.config.grpo)
    written = {**training.config.model_dump(mode="json"), "grpo": grpo}
    print(yaml.safe_dump(written, sort_keys=False).rstrip())
    if training.not_here is not None:
        print(f"# On this machine it would not start: {training.not_here}")
    return {"config": written, "not_here": training.not_here}


def _set_in(grpo: Any) -> dict[str, Any]:
    plain = grpo.to_dict()
    default = {field.name: field.default for field in dataclasses.fields(grpo)}
    return {name: value for name, value in plain.items() if name in default and value != default[name]}


def _finish(training: Training, file: Path, world_model: Path | None) -> dict[str, Any]:
    entries = read_log(training.log)
    picture = plot_training(entries, training.out / "training.png", title=f"{file.stem}: {training.suite.name}")
    result = summarise(entries) | {"policy": str(training.out / "policy"), "log": str(training.log)}
    if world_model is not None:
        result["world_model"] = str(world_model)
    written = write_json(result, training.out / "result.json")
    console = Console()
    console.print(summary_table(result))
    console.print(f"Written: {picture}, {written}, {training.log}", highlight=False, markup=False, soft_wrap=True)
    return {**result, "plot": str(picture)}


def summarise(entries: Sequence[Entry]) -> dict[str, Any]:
    """What a training came to: means of its first and its last steps."""
    steps, rewards = series(entries, "reward")
    _, hidden = series(entries, "rollout/hidden_seconds")
    _, matches = series(entries, "rollout/match_rate")
    return {
        "steps": steps[-1] if steps else 0,
        "reward_first": _mean(rewards[:_LAST]),
        "reward_last": _mean(rewards[-_LAST:]),
        "match_rate": _mean(matches[-_LAST:]),
        "hidden_seconds": sum(hidden),
        "seconds": max((entry["seconds"] for entry in entries), default=0.0),
    }


def summary_table(result: dict[str, Any]) -> Table:
    """The same, for people."""
    table = Table(show_header=False)
    table.add_row("steps", str(result["steps"]))
    table.add_row(f"reward, first {_LAST} steps", shown(result["reward_first"], lambda value: f"{value:.3f}"))
    table.add_row(f"reward, last {_LAST} steps", shown(result["reward_last"], lambda value: f"{value:.3f}"))
    table.add_row(f"match rate, last {_LAST} steps", shown(result["match_rate"], percent))
    table.add_row("hidden generation", seconds(result["hidden_seconds"]))
    table.add_row("wall time", seconds(result["seconds"]))
    return table


class TrainingProgress(TrainerCallback):
    """A bar on a terminal, a line a step elsewhere; on stderr."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bars = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("steps  {task.fields[said]}"),
            TimeElapsedColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._run: TaskID | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The number of steps is known."""
        if state.is_world_process_zero:
            self._run = self._bars.add_task("training", total=state.max_steps, completed=state.global_step, said="")

    def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """A step was logged."""
        entry = state.log_history[-1]
        if self._run is None or "reward" not in entry:
            return
        said = f"reward {entry['reward']:.3f}"
        if (match := entry.get("rollout/match_rate")) is not None:
            said += f", match {percent(match)}, hidden {seconds(entry['rollout/hidden_seconds'])}"
        self._bars.update(self._run, completed=state.global_step, said=said)
        if self._bars.disable:
            line = f"step {state.global_step} of {state.max_steps}: {said}, {entry['step_time']:.1f} s"
            self._console.print(line, highlight=False, markup=False)

    def __enter__(self) -> TrainingProgress:
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bars.stop()


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
