"""Writes a :class:`~obsspec_gym.speculation.record.TurnRecord` of every turn, as it is decided."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from obsspec_gym.agents.history import History
from obsspec_gym.speculation.command_kind import command_kind
from obsspec_gym.speculation.futures import Future, completion_of
from obsspec_gym.speculation.record import Fate, FutureRecord, PredictionRecord, Span, TurnRecord, is_empty
from obsspec_gym.speculation.selector import Budget
from obsspec_gym.types import EpisodeId, Outcome


class TurnRecorder:
    """Keeps what was given up before its turn has ended.

    Args:
        on_turn: Is called with each record; ``None`` for nobody.
    """

    def __init__(self, on_turn: Callable[[TurnRecord], None] | None) -> None:
        self._on_turn = on_turn
        self._dropped: dict[EpisodeId, list[Future]] = {}

    def drop(self, episode: EpisodeId, futures: Sequence[Future]) -> None:
        """Futures are given up before their turn has ended; they are written down with it."""
        if futures:
            self._dropped.setdefault(episode, []).extend(futures)

    def end(
        self,
        root: Future,
        real: History,
        outcome: Outcome,
        budget: Budget,
        tool: Span,
        children: Sequence[Future],
        discarded: Sequence[Future],
        late: bool,
    ) -> TurnRecord:
        """A tool has ended and its predictions are verified.

        Args:
            root: The future of the turn's action.
            real: The history that ends in the real observation.
            outcome: What really happened.
            budget: How far the turn might speculate.
            tool: The tool's run.
            children: The futures of what was predicted.
            discarded: The futures that did not come true.
            late: Whether the world model has not answered.
        """
        acted, now = real.parent, tool.end
        assert acted is not None
        decided = [*self._dropped.pop(acted.episode, ()), *discarded]
        hit = root.prediction is not None and root.generation is not None
        record = TurnRecord(
            episode=acted.episode,
            turn=acted.turn - 1,
            generation=None if root.generation is None else _generated(root, now),
            tokens=len(acted.segment),
            hit=hit,
            committed=root.committed,
            action_known=root.prediction_started,
            prediction=Span(root.prediction_started, root.prediction_ready) if hit else None,
            tool=tool,
            ends=outcome.ends,
            predictions=tuple(_verified(child, real, outcome) for child in children),
            late=int(late),
            futures=tuple(_decided(future, acted.turn, now) for future in decided if future.generation),
            depth=budget.depth,
            breadth=budget.breadth,
            reason=budget.reason,
            kind=command_kind(acted.value),
            key=_key(root.history),
            draft=root.draft,
            accepted=_accepted(root),
        )
        if self._on_turn is not None:
            self._on_turn(record)
        return record

    def forget(self, episode: EpisodeId) -> None:
        """The episode is over."""
        self._dropped.pop(episode, None)


def _generated(future: Future, now: float) -> Span:
    """Its generation, as far as it has come."""
    assert future.generation is not None
    finished = future.generation.finished
    return Span(future.started, now if finished is None else finished)


def _accepted(future: Future) -> int:
    completion = completion_of(future)
    return 0 if completion is None else completion.accepted_draft_tokens


def _verified(child: Future, real: History, outcome: Outcome) -> PredictionRecord:
    prediction = child.prediction
    assert prediction is not None
    return PredictionRecord(
        source=prediction.source,
        probability=prediction.probability,
        span=Span(child.prediction_started, child.prediction_ready),
        matched=child.history.world_key == real.world_key and prediction.ends == outcome.ends,
        empty=is_empty(outcome.observation),
        rank=child.rank,
        declined=child.chance <= 0,
        key=_key(child.history),
    )


def _decided(future: Future, turn: int, now: float) -> FutureRecord:
    generation, prediction, acted = future.generation, future.prediction, future.history.parent
    assert generation is not None
    assert prediction is not None
    assert acted is not None
    assert acted.parent is not None
    return FutureRecord(
        span=_generated(future, now),
        fate=Fate.CANCELLED if generation.cancelled() else Fate.DISCARDED,
        tokens=len(generation.partial()),
        depth=future.history.turn - turn + 1,
        key=_key(future.history),
        parent=_key(acted.parent),
        source=prediction.source,
        probability=prediction.probability,
        prediction=Span(future.prediction_started, future.prediction_ready),
    )


def _key(history: History) -> str:
    return history.key[:8].hex()
