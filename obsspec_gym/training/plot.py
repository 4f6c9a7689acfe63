"""Pictures of trainings: what several have learnt; of one, its reward, matches, hidden seconds and time per phase."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from obsspec_gym.errors import InvalidArgumentError, MissingExtraError
from obsspec_gym.training.log import Entry, series

REWARD = "reward"
EVALUATION = "eval_reward"
PLAYED_MATCH, LIVE_MATCH, FROZEN_MATCH = "rollout/match_rate", "world_model/match_rate", "world_model/frozen_match_rate"
PLAYED_HIDDEN, LIVE_HIDDEN, FROZEN_HIDDEN = (
    "rollout/hidden_seconds",
    "world_model/hidden_seconds",
    "world_model/frozen_hidden_seconds",
)
STEP, ROLLOUT, WORLD_MODEL = "step_time", "rollout/batch_latency", "world_model/seconds"

_INK, _MUTED = "#1A1A1A", "#6B6B6B"
_BLUE, _ORANGE, _PINK, _GREY = "#0072B2", "#E69F00", "#CC79A7", "#C9CED6"

PHASES = {"rollouts": _BLUE, "policy: loss and gradients": _ORANGE, "world model": _PINK, "rest": _GREY}
"""What a step's seconds went into, and its colour."""


def plot_training(entries: Sequence[Entry], path: str | Path, title: str = "Training") -> Path:
    """Draws a training.

    Args:
        entries: Its log, as :func:`~obsspec_gym.training.log.read_log` gives it.
        path: The PNG file that is written.
        title: The headline.

    Returns:
        The path.

    Raises:
        InvalidArgumentError: If no step was logged.
        MissingExtraError: If matplotlib is not installed.
    """
    if not any(REWARD in entry for entry in entries):
        raise InvalidArgumentError("there is nothing to draw: no step of a training was logged")
    figure = _figure(13, 7.6)
    panels: Sequence[Callable[[Any, Sequence[Entry]], None]] = (_reward, _matches, _hidden, _phases)
    for axes, draw in zip(figure.subplots(2, 2).flat, panels, strict=True):
        draw(axes, entries)
        _finish(axes)
    return _save(figure, path, title)


def plot_learning(
    logs: Sequence[Sequence[Entry]], families: Mapping[str, tuple[float, float]], path: str | Path, title: str
) -> Path:
    """Draws what several trainings from the same policy have learnt.

    Args:
        logs: One a training, as :func:`~obsspec_gym.training.log.read_log` gives it.
        families: Mean reward on tasks that are not trained on, before and after, by family.
        path: The PNG file that is written.
        title: The headline.

    Returns:
        The path.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    figure = _figure(13, 4.4)
    curves, bars = figure.subplots(1, 2)
    for number, entries in enumerate(logs):
        steps, rewards = series(entries, REWARD)
        shared = {"color": (_BLUE, _ORANGE, _PINK)[number % 3], "linestyle": ("-", "--", ":")[number // 3 % 3]}
        curves.plot(steps, _smooth(rewards), linewidth=2, label=f"training {number + 1}", **shared)
    _name(curves, "Reward in training", "mean of the last 10 steps")
    for place, (color, label) in enumerate(((_GREY, "before"), (_BLUE, "after"))):
        values = [pair[place] for pair in families.values()]
        drawn = bars.bar([x + 0.4 * place for x in range(len(values))], values, 0.38, color=color, label=label)
        bars.bar_label(drawn, fmt="%.2f", fontsize=9, color=_INK)
    bars.set_xticks([x + 0.2 for x in range(len(families))], list(families))
    _name(bars, "Tasks that are never trained on", "mean reward")
    bars.set_xlabel("")
    bars.set_ylim(0, 1)
    for axes in (curves, bars):
        _finish(axes)
    return _save(figure, path, title)


def _figure(width: float, height: float) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "lm") from error
    return Figure(figsize=(width, height), dpi=150, layout="constrained", facecolor="white")


def _save(figure: Any, path: str | Path, title: str) -> Path:
    figure.suptitle(title, x=0.008, ha="left", fontsize=15, fontweight="bold", color=_INK)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, format="png")
    return target


def phases(entries: Sequence[Entry]) -> tuple[list[int], dict[str, list[float]]]:
    """Seconds of each step by phase.

    Returns:
        The steps, and for each phase its seconds at each of them. "rest" is what is left of the wall time between two
        log entries: the optimiser, the engine's new weights, checkpoints, evaluation.
    """
    steps: list[int] = []
    seconds: dict[str, list[float]] = {name: [] for name in PHASES}
    previous: Entry | None = None
    for entry in entries:
        if STEP not in entry:
            continue
        between = 1 if previous is None else max(1, entry["step"] - previous["step"])
        played, world_model = (entry.get(name) or 0.0 for name in (ROLLOUT, WORLD_MODEL))
        wall = (entry["seconds"] - (previous["seconds"] if previous else 0.0)) / between
        shares = [played, max(0.0, entry[STEP] - played), world_model]
        steps.append(entry["step"])
        for name, value in zip(PHASES, [*shares, max(0.0, wall - sum(shares))], strict=True):
            seconds[name].append(value)
        previous = entry
    return steps, seconds


def _reward(axes: Any, entries: Sequence[Entry]) -> None:
    steps, rewards = series(entries, REWARD)
    axes.plot(steps, rewards, color=_GREY, linewidth=1, label="each step")
    axes.plot(steps, _smooth(rewards), color=_BLUE, linewidth=2, label="mean of the last 10 steps")
    evaluated, held_out = series(entries, EVALUATION)
    if evaluated:
        axes.plot(evaluated, held_out, "o-", color=_ORANGE, markersize=5, label="tasks it is not trained on")
    _name(axes, "Reward", "mean reward of a rollout")
    axes.set_ylim(bottom=min(0.0, *rewards))


def _matches(axes: Any, entries: Sequence[Entry]) -> None:
    _curves(axes, entries, {PLAYED_MATCH: _PINK, LIVE_MATCH: _BLUE, FROZEN_MATCH: _GREY}, _MATCH_LABELS)
    _name(axes, "World model: exact matches", "fraction of predictions")
    axes.set_ylim(0, 1)


def _hidden(axes: Any, entries: Sequence[Entry]) -> None:
    _curves(axes, entries, {PLAYED_HIDDEN: _PINK, LIVE_HIDDEN: _BLUE, FROZEN_HIDDEN: _GREY}, _HIDDEN_LABELS)
    _name(axes, "Hidden seconds", "generation under tool time, s a step")
    axes.set_ylim(bottom=0)


def _phases(axes: Any, entries: Sequence[Entry]) -> None:
    steps, seconds = phases(entries)
    axes.stackplot(steps, *seconds.values(), labels=list(seconds), colors=list(PHASES.values()), step="mid")
    _name(axes, "Time of a step", "seconds")
    if steps and steps[0] < steps[-1]:
        axes.set_xlim(steps[0], steps[-1])


_MATCH_LABELS = {
    PLAYED_MATCH: "in the rollouts (memory included)",
    LIVE_MATCH: "language model, trained along",
    FROZEN_MATCH: "its frozen twin",
}
_HIDDEN_LABELS = {
    PLAYED_HIDDEN: "in the rollouts (memory included)",
    LIVE_HIDDEN: "language model, trained along: would hide",
    FROZEN_HIDDEN: "its frozen twin: would hide",
}


def _curves(axes: Any, entries: Sequence[Entry], colors: dict[str, str], labels: dict[str, str]) -> None:
    for name, color in colors.items():
        steps, values = series(entries, name)
        if steps:
            axes.plot(steps, values, color=color, linewidth=0.8, alpha=0.35)
            axes.plot(steps, _smooth(values), color=color, linewidth=2, label=labels[name])


def _name(axes: Any, title: str, unit: str) -> None:
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold", color=_INK)
    axes.set_ylabel(unit, color=_MUTED)
    axes.set_xlabel("policy step", color=_MUTED)


def _finish(axes: Any) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(axis="y", color="#EEEEEE")
    axes.set_axisbelow(True)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=9)
    else:
        axes.text(0.5, 0.5, "not measured in this run", transform=axes.transAxes, ha="center", color=_MUTED)


def _smooth(values: Sequence[float], window: int = 10) -> list[float]:
    """The mean of each value and those before it, so many at most."""
    means = []
    for stop in range(1, len(values) + 1):
        last = values[max(0, stop - window) : stop]
        means.append(sum(last) / len(last))
    return means
