"""The bars of a trace: what a run's records look like on tracks, and which bar belongs inside which."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from obsspec_gym.speculation.record import Fate, FutureRecord, PredictionRecord, Span, TurnRecord
from obsspec_gym.types import EpisodeId

ENGINE = "engine"
WORLD_MODEL = "world model"


@dataclass(frozen=True, slots=True, eq=False)
class Slice:
    """One bar of the trace.

    Attributes:
        group: Whose it is: an episode, :data:`ENGINE` or :data:`WORLD_MODEL`.
        track: Which of its tracks: "turns" or "futures"; "committed" or "speculative"; "predictions".
        name: What is written on it.
        span: From when to when, in seconds.
        details: Shown when it is clicked.
        within: The bar it belongs inside; it is drawn there if it also lies there in time.
    """

    group: EpisodeId | str
    track: str
    name: str
    span: Span
    details: dict[str, Any] = field(default_factory=dict)
    within: Slice | None = None


def slices_of(turns: Iterable[TurnRecord]) -> list[Slice]:
    """The bars of a run; a bar comes after the one it belongs inside."""
    episodes: dict[EpisodeId, _Episode] = {}
    for turn in turns:
        episodes.setdefault(turn.episode, _Episode(turn.episode)).turns.append(turn)
    return [bar for episode in episodes.values() for bar in episode.slices()]


class _Episode:
    """One episode's records, turned into bars."""

    def __init__(self, episode: EpisodeId) -> None:
        self.episode = episode
        self.label = f"{episode.task_id} #{episode.sample}"
        self.turns: list[TurnRecord] = []
        self._futures: dict[str, Slice] = {}  # by the history they are for

    def slices(self) -> Iterator[Slice]:
        kept = {turn.key for turn in self.turns if turn.hit}
        foreseen: tuple[TurnRecord, PredictionRecord] | None = None  # the prediction that came true the turn before
        for turn in self.turns:
            if turn.hit and turn.prediction is not None and turn.generation is not None:
                yield from self._kept(turn, turn.prediction, turn.generation, foreseen)
            yield from self._turn(turn)
            yield from self._committed(turn)
            for future in turn.futures:
                yield from self._given_up(turn, future)
            generated = {future.key for future in turn.futures} | kept
            for prediction in turn.predictions:
                if prediction.key not in generated:  # of an end, or declined by the selector
                    yield self._only_predicted(turn, prediction)
                yield self._asked(prediction.span, prediction.source, prediction.probability, prediction.matched)
            matched = next((prediction for prediction in turn.predictions if prediction.matched), None)
            foreseen = None if matched is None else (turn, matched)

    def _turn(self, turn: TurnRecord) -> Iterator[Slice]:
        """From the moment its history is real: what of the generation is waited for, then the tool."""
        details = {
            "command": turn.kind,
            "hit": turn.hit,
            "tokens": turn.tokens,
            "hidden_seconds": turn.hidden_seconds,
            "ends": turn.ends,
            **_budget(turn),
            "late": turn.late,
        }
        begins = min(turn.committed, turn.tool.start) if turn.generation is not None else turn.tool.start
        whole = Span(begins, turn.tool.end)
        outer = Slice(self.episode, "turns", f"turn {turn.turn}", whole, details)
        yield outer
        if turn.generation is not None and turn.generation.end > begins:
            waited = Span(max(begins, turn.generation.start), min(turn.generation.end, turn.tool.start))
            if waited.seconds > 0:
                yield Slice(self.episode, "turns", "generate", waited, {"tokens": turn.tokens}, outer)
        yield Slice(self.episode, "turns", f"tool: {turn.kind}", turn.tool, {}, outer)

    def _committed(self, turn: TurnRecord) -> Iterator[Slice]:
        """The action's request, on the engine's tracks: speculative until its history is real."""
        if turn.generation is None:
            return
        details = {"tokens": turn.tokens, "outcome": Fate.KEPT.name}
        start, end = turn.generation.start, turn.generation.end
        real = turn.became_real(turn.generation)
        name = f"{self.label} turn {turn.turn}"
        if real > start:
            yield Slice(ENGINE, "speculative", name, Span(start, real), details)
        if end > real or real == start:
            yield Slice(ENGINE, "committed", name, Span(real, end), details)

    def _kept(
        self, turn: TurnRecord, prediction: Span, generation: Span, foreseen: tuple[TurnRecord, PredictionRecord] | None
    ) -> Iterator[Slice]:
        """The future that became this turn's action, until its history was real."""
        before, came_true = foreseen if foreseen is not None else (None, None)
        outer = Slice(
            self.episode,
            "futures",
            f"{Fate.KEPT.name}, turn {turn.turn}",
            Span(prediction.start, turn.committed),
            {
                "outcome": Fate.KEPT.name,
                "source": came_true.source if came_true else "",
                "probability": _finite(came_true.probability) if came_true else None,
                "tokens": turn.tokens,
                "hidden_seconds": turn.hidden_seconds,
                **(_budget(before) if before else {}),
            },
        )
        # A future that was kept has its bar once: what is given up below it refers to it later.
        self._futures[turn.key] = outer
        yield outer
        yield from self._inside(outer, prediction, Span(generation.start, min(generation.end, turn.committed)))

    def _given_up(self, turn: TurnRecord, future: FutureRecord) -> Iterator[Slice]:
        """A future whose history did not come true: while it was generated, and until that was known."""
        asked = future.prediction or Span(future.span.start, future.span.start)
        known = future.span.end if future.fate is Fate.CANCELLED else max(turn.tool.end, future.span.end)
        name = f"{future.fate.name}, turn {turn.turn + future.depth}"
        details = {
            "outcome": future.fate.name,
            "source": future.source,
            "probability": _finite(future.probability),
            "tokens": future.tokens,
            "observations_ahead": future.depth,
            **_budget(turn),
        }
        parent = self._futures.get(future.parent)
        outer = Slice(self.episode, "futures", name, Span(asked.start, known), details, parent)
        self._futures[future.key] = outer
        yield outer
        yield from self._inside(outer, asked, future.span)
        yield Slice(
            ENGINE,
            "speculative",
            f"{self.label} turn {turn.turn + future.depth}",
            future.span,
            {"tokens": future.tokens, "outcome": future.fate.name},
        )
        if future.depth > 1:  # those of the first level were verified, and are drawn as such
            yield self._asked(asked, future.source, future.probability, None)

    def _inside(self, outer: Slice, prediction: Span, generation: Span) -> Iterator[Slice]:
        yield Slice(self.episode, "futures", "predict", prediction, {}, outer)
        yield Slice(self.episode, "futures", "generate", generation, {}, outer)

    def _only_predicted(self, turn: TurnRecord, prediction: PredictionRecord) -> Slice:
        outcome = "match" if prediction.matched else "no match"
        details = {
            "source": prediction.source,
            "probability": _finite(prediction.probability),
            "outcome": outcome,
            **_budget(turn),
        }
        return Slice(self.episode, "futures", f"only predicted: {outcome}", prediction.span, details)

    def _asked(self, span: Span, source: str, probability: float, matched: bool | None) -> Slice:
        outcome = "not verified" if matched is None else ("match" if matched else "no match")
        details = {"episode": self.label, "probability": _finite(probability), "outcome": outcome}
        return Slice(WORLD_MODEL, "predictions", f"{source}: {outcome}", span, details)


def _budget(turn: TurnRecord) -> dict[str, Any]:
    return {"depth": turn.depth, "breadth": turn.breadth, "selector": turn.reason}


def _finite(number: float) -> float | None:
    """A world model may say anything; a trace is JSON."""
    return number if math.isfinite(number) else None
