"""Bars as trace events, in the JSON that ui.perfetto.dev and chrome://tracing read.

On a track bars may nest, and must not overlap otherwise: what would is dropped by the reader. Where it is needed a
track therefore has several lanes. Times are whole microseconds: rounded once, so that what nests does so exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from obsspec_gym.speculation.trace_slices import ENGINE, WORLD_MODEL, Slice
from obsspec_gym.types import EpisodeId

TRACKS = ("turns", "futures", "committed", "speculative", "predictions")
_LANES = 100_000
_COUNTED = ("committed", "speculative")


def trace_events(bars: Sequence[Slice]) -> list[dict[str, Any]]:
    """The events of a run: processes are the episodes, the engine and the world model; threads are their tracks."""
    clock = _Clock(bars)
    tracks: dict[EpisodeId | str, dict[str, list[Slice]]] = {}
    for bar in bars:
        tracks.setdefault(bar.group, {}).setdefault(bar.track, []).append(bar)
    last = [group for group in (ENGINE, WORLD_MODEL) if group in tracks]
    order = [group for group in tracks if group not in last]
    events: list[dict[str, Any]] = []
    for process, group in enumerate([*last, *order], start=1):
        name = group if isinstance(group, str) else f"environment: {group.task_id} #{group.sample}"
        events.append({"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}})
        events.append({"ph": "M", "name": "process_sort_index", "pid": process, "args": {"sort_index": process}})
        for row, track in enumerate(TRACKS):
            events += _track_events(tracks[group].get(track, []), track, process, 1 + row * _LANES, clock)
        if group == ENGINE:
            events += _counter_events(tracks[group], process, clock)
    return events


class _Clock:
    """Whole microseconds since the run began."""

    def __init__(self, bars: Iterable[Slice]) -> None:
        self._origin = min((bar.span.start for bar in bars), default=0.0)

    def __call__(self, seconds: float) -> int:
        return round((seconds - self._origin) * 1e6)

    def times(self, bar: Slice) -> tuple[int, int]:
        start = self(bar.span.start)
        return start, max(start, self(bar.span.end))


def _track_events(
    bars: Sequence[Slice], track: str, process: int, first_thread: int, clock: _Clock
) -> Iterator[dict[str, Any]]:
    for lane, lane_bars in enumerate(lanes_of(bars, clock)):
        thread = first_thread + lane
        label = track if lane == 0 else f"{track} ({lane + 1})"
        yield {"ph": "M", "name": "thread_name", "pid": process, "tid": thread, "args": {"name": label}}
        yield {"ph": "M", "name": "thread_sort_index", "pid": process, "tid": thread, "args": {"sort_index": thread}}
        for bar in lane_bars:
            start, end = clock.times(bar)
            yield {
                "ph": "X",
                "name": bar.name,
                "cat": track,
                "pid": process,
                "tid": thread,
                "ts": start,
                "dur": end - start,
                "args": bar.details,
            }


def lanes_of(bars: Sequence[Slice], clock: _Clock) -> list[list[Slice]]:
    """Spreads the bars of a track over as few lanes as they need: a bar lies beside others, or inside its own."""
    lanes: list[list[Slice]] = []
    open_bars: list[list[tuple[Slice, int]]] = []
    timed = [(*clock.times(bar), bar) for bar in bars]
    for start, end, bar in sorted(timed, key=lambda each: (each[0], -each[1])):
        for lane, stack in zip(lanes, open_bars, strict=True):
            while stack and stack[-1][1] <= start:
                stack.pop()
            if not stack or (stack[-1][0] is bar.within and stack[-1][1] >= end):
                lane.append(bar)
                stack.append((bar, end))
                break
        else:
            lanes.append([bar])
            open_bars.append([(bar, end)])
    return lanes


def _counter_events(tracks: dict[str, list[Slice]], process: int, clock: _Clock) -> Iterator[dict[str, Any]]:
    """How many requests of each kind the engine has, whenever that changes."""
    changes = [
        (moment, track, by)
        for track in _COUNTED
        for bar in tracks.get(track, ())
        for moment, by in zip(clock.times(bar), (1, -1), strict=True)
    ]
    running = dict.fromkeys(_COUNTED, 0)
    for moment, together in groupby(sorted(changes), key=lambda change: change[0]):
        for _, track, by in together:
            running[track] += by
        yield {"ph": "C", "name": "requests", "pid": process, "ts": moment, "args": dict(running)}
