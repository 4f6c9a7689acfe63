"""The trace of a run, for ui.perfetto.dev (or chrome://tracing): what ran under what, and what became of it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from obsspec_gym.speculation.record import Span, TurnRecord
from obsspec_gym.types import EpisodeId


@dataclass(frozen=True, slots=True)
class Slice:
    """One bar of the trace.

    Attributes:
        episode: Whose it is; every episode is a process of the trace.
        track: Which of its rows: "tool", "generation", "prediction" or "future".
        name: What is written on it.
        span: From when to when, in seconds.
        details: Shown when it is clicked.
    """

    episode: EpisodeId
    track: str
    name: str
    span: Span
    details: dict[str, Any]


TRACKS = ("tool", "generation", "prediction", "future")


def slices_of(turns: Iterable[TurnRecord]) -> list[Slice]:
    """The bars of a run."""
    return [bar for turn in turns for bar in _slices(turn)]


def _slices(turn: TurnRecord) -> list[Slice]:
    episode, label = turn.episode, f"turn {turn.turn}"
    bars = [
        Slice(
            episode,
            "tool",
            f"tool, {label}",
            turn.tool,
            {"ends": turn.ends, "depth": turn.depth, "breadth": turn.breadth, "reason": turn.reason, "late": turn.late},
        )
    ]
    if turn.generation is not None:
        details: dict[str, Any] = {"tokens": turn.tokens, "hidden_seconds": turn.hidden_seconds}
        if turn.hit:
            bars.append(Slice(episode, "future", f"KEPT, {label}", turn.generation, details))
        else:
            bars.append(Slice(episode, "generation", f"generation, {label}", turn.generation, details))
    for prediction in turn.predictions:
        outcome = "match" if prediction.matched else "no match"
        details = {"source": prediction.source, "probability": prediction.probability, "outcome": outcome}
        bars.append(Slice(episode, "prediction", f"{prediction.source}: {outcome}", prediction.span, details))
    for future in turn.futures:
        details = {"tokens": future.tokens, "depth": future.depth}
        bars.append(Slice(episode, "future", f"{future.fate.name}, {label}", future.span, details))
    return bars


def write_trace(turns: Iterable[TurnRecord], path: str | Path) -> Path:
    """Writes a run as a trace-event file.

    Args:
        turns: The records of the run.
        path: Where to; conventionally ends in ``.perfetto.json``.

    Returns:
        The path.
    """
    bars = slices_of(turns)
    origin = min((bar.span.start for bar in bars), default=0.0)
    processes = {episode: number for number, episode in enumerate(dict.fromkeys(bar.episode for bar in bars), start=1)}
    events: list[dict[str, Any]] = []
    for episode, process in processes.items():
        name = f"{episode.task_id} #{episode.sample}"
        events.append({"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}})
        for row, track in enumerate(TRACKS):
            mine = [bar for bar in bars if bar.episode == episode and bar.track == track]
            for lane, lane_bars in enumerate(_lanes(mine)):
                thread = 1 + row * 100 + lane
                label = track if lane == 0 else f"{track} ({lane + 1})"
                events.append(
                    {"ph": "M", "name": "thread_name", "pid": process, "tid": thread, "args": {"name": label}}
                )
                events += [_event(bar, process, thread, origin) for bar in lane_bars]
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
    return target


def _event(bar: Slice, process: int, thread: int, origin: float) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": bar.name,
        "cat": bar.track,
        "pid": process,
        "tid": thread,
        "ts": (bar.span.start - origin) * 1e6,
        "dur": bar.span.seconds * 1e6,
        "args": bar.details,
    }


def _lanes(bars: list[Slice]) -> list[list[Slice]]:
    """Spreads bars over as few rows as they need not to overlap: a row of a trace can only nest."""
    lanes: list[list[Slice]] = []
    for bar in sorted(bars, key=lambda bar: (bar.span.start, bar.span.end)):
        free = next((lane for lane in lanes if lane[-1].span.end <= bar.span.start), None)
        if free is None:
            lanes.append([bar])
        else:
            free.append(bar)
    return lanes
