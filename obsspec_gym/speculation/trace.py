"""The trace of a run: one file that ui.perfetto.dev draws, and that the run's measures can be computed from again.

write_trace(collection, "run.perfetto.json")
trace = read_trace("run.perfetto.json")
assert measure(trace) == measure(collection)
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.speculation.collector import Collection
from obsspec_gym.speculation.record import Fate, FutureRecord, PredictionRecord, Span, TurnRecord
from obsspec_gym.speculation.trace_events import trace_events
from obsspec_gym.speculation.trace_slices import slices_of
from obsspec_gym.types import EpisodeId

VERSION = 1
_RECORDS = "obsspec_gym"  # readers of trace events skip what they do not know, and it comes last


@dataclass(frozen=True, slots=True)
class RolloutRecord:
    """One finished episode, as far as the measures need it.

    Attributes:
        episode: Task and sample.
        reward: Sum of its rewards.
        started: When ``reset`` was called.
        finished: When the last tool ended.
        terminated: Whether the environment said that it ended.
        reason: Why it was cut off; empty otherwise.
        broken: Whether its environment or engine failed.
    """

    episode: EpisodeId
    reward: float
    started: float
    finished: float
    terminated: bool = False
    reason: str = ""
    broken: bool = False

    @property
    def seconds(self) -> float:
        """Agent latency."""
        return self.finished - self.started


@dataclass(frozen=True, slots=True)
class Trace:
    """What a trace file holds; :func:`~obsspec_gym.speculation.metrics.measure` takes it like a collection.

    Attributes:
        trajectories: The finished episodes.
        turns: The record of every turn.
        seconds: Wall seconds of the whole run.
    """

    trajectories: tuple[RolloutRecord, ...]
    turns: tuple[TurnRecord, ...]
    seconds: float

    @classmethod
    def of(cls, run: Collection | Iterable[TurnRecord]) -> Trace:
        """The trace of a collection, or of bare records, of which no rollout is known to be finished."""
        if not isinstance(run, Collection):
            turns = tuple(run)
            ends = [turn.tool.end for turn in turns]
            starts = [turn.tool.start if turn.generation is None else turn.generation.start for turn in turns]
            return cls((), turns, max(ends) - min(starts) if turns else 0.0)
        rollouts = tuple(
            RolloutRecord(
                episode=trajectory.episode,
                reward=float(trajectory.reward),
                started=trajectory.started,
                finished=trajectory.finished,
                terminated=trajectory.terminated,
                reason=trajectory.reason,
                broken=trajectory.broken,
            )
            for trajectory in run.trajectories
        )
        return cls(rollouts, run.turns, run.seconds)


def write_trace(run: Collection | Trace | Iterable[TurnRecord], path: str | Path) -> Path:
    """Writes a run as a trace-event file; the file is there in full or not at all.

    Args:
        run: A collection, or the records of its turns.
        path: Where to; conventionally ends in ``.perfetto.json``.

    Returns:
        The path.
    """
    trace = run if isinstance(run, Trace) else Trace.of(run)
    content = {
        "displayTimeUnit": "ms",
        "traceEvents": trace_events(slices_of(trace.turns)),
        _RECORDS: {"version": VERSION, **_plain(trace)},
    }
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        unfinished.write_text(json.dumps(content, separators=(",", ":")), encoding="utf-8")
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)
    return target


def read_trace(path: str | Path) -> Trace:
    """Reads what :func:`write_trace` wrote.

    Raises:
        InvalidArgumentError: If there is no such file, or it is something else, or not all of it.
    """
    source = Path(path)
    try:
        text = source.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidArgumentError(f"{source} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"{source} is not a trace of obsspec: it is not text") from error
    if not text.strip():
        raise InvalidArgumentError(f"{source} is empty: the run that should have written it did not get that far")
    content = _parse(source, text)
    if not isinstance(content, dict) or not isinstance(content.get(_RECORDS), dict):
        raise InvalidArgumentError(f"{source} is not a trace of obsspec: it is JSON, but has no records of turns")
    records = content[_RECORDS]
    if records.get("version") != VERSION:
        raise InvalidArgumentError(
            f"{source} is a trace of version {records.get('version')!r}, and this obsspec reads version {VERSION}"
        )
    try:
        return _trace(records)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidArgumentError(f"{source} is damaged: its records are not those of a trace ({error})") from error


def _parse(source: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        if text.lstrip().startswith('{"displayTimeUnit"') or text.lstrip().startswith('{"traceEvents"'):
            raise InvalidArgumentError(f"{source} is cut off: a trace begins there but does not end") from error
        raise InvalidArgumentError(f"{source} is not a trace of obsspec: it is not JSON") from error


def _plain(value: Any) -> Any:
    """Records as what JSON knows; numbers keep every digit."""
    match value:
        case Span():
            return [value.start, value.end]
        case EpisodeId():
            return [value.task_id, value.sample]
        case Fate():
            return value.name
        case tuple():
            return [_plain(item) for item in value]
        case Trace() | RolloutRecord() | TurnRecord() | PredictionRecord() | FutureRecord():
            return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
        case _:
            return value


def _trace(records: dict[str, Any]) -> Trace:
    return Trace(
        trajectories=tuple(
            RolloutRecord(**{**row, "episode": _episode(row["episode"])}) for row in records["trajectories"]
        ),
        turns=tuple(_turn(row) for row in records["turns"]),
        seconds=float(records["seconds"]),
    )


def _turn(row: dict[str, Any]) -> TurnRecord:
    return TurnRecord(
        **{
            **row,
            "episode": _episode(row["episode"]),
            "generation": _span(row["generation"]),
            "prediction": _span(row["prediction"]),
            "tool": Span(*row["tool"]),
            "predictions": tuple(
                PredictionRecord(**{**each, "span": Span(*each["span"])}) for each in row["predictions"]
            ),
            "futures": tuple(_future(each) for each in row["futures"]),
        }
    )


def _future(row: dict[str, Any]) -> FutureRecord:
    return FutureRecord(
        **{**row, "span": Span(*row["span"]), "fate": Fate[row["fate"]], "prediction": _span(row["prediction"])}
    )


def _episode(pair: list[Any]) -> EpisodeId:
    return EpisodeId(*pair)


def _span(pair: list[float] | None) -> Span | None:
    return None if pair is None else Span(*pair)
