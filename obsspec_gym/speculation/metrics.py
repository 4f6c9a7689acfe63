"""The measures, with one definition each.

Every number this project prints about speculation is computed here, from the records of the turns.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from obsspec_gym.speculation.record import Fate, PredictionRecord, TurnRecord


class Finished(Protocol):
    """What the measures need of a finished episode."""

    @property
    def reward(self) -> float:
        """Sum of its rewards."""
        ...

    @property
    def seconds(self) -> float:
        """Its agent latency."""
        ...


class Measurable(Protocol):
    """What can be measured: a collection, or the trace of one."""

    @property
    def trajectories(self) -> Sequence[Finished]:
        """The finished episodes."""
        ...

    @property
    def turns(self) -> Sequence[TurnRecord]:
        """The record of every turn."""
        ...

    @property
    def seconds(self) -> float:
        """Wall seconds it took."""
        ...


@dataclass(frozen=True, slots=True)
class Measures:
    """What a collection came to. Ratios are ``None`` where there is nothing to divide by.

    Attributes:
        rollouts: Finished episodes.
        turns: Executed actions.
        solved: Fraction of the rollouts with a positive reward.
        agent_latency: Mean wall seconds from reset to the end of one rollout.
        batch_latency: Wall seconds until the last rollout ended.
        throughput: Rollouts per hour.
        generation_seconds: Sum of the generation time of all executed actions.
        tool_seconds: Sum of the tool time of all executed actions.
        generation_tool_ratio: G/T, the ratio of the two sums: it bounds every saving.
        verified: Predictions that were there in time and compared with the truth.
        match_rate: Exact matches / verified predictions.
        time_weighted_match_rate: The same, weighted by the tool's seconds.
        nonempty_match_rate: The same over outcomes that printed something.
        match_rate_by_source: The match rate of each source.
        late: Predictions that were asked for and not there in time.
        hit_rate: Turns whose action came from a future / all turns that had a turn before them.
        prediction_lead: Tool seconds / prediction seconds over verified predictions.
        hidden_seconds: Generation time that ran under a tool and was kept.
        pipeline_efficiency: Hidden seconds / sum over hits of min(tool - prediction, generation).
        discarded_tokens: Tokens generated for futures that did not come true, per rollout.
    """

    rollouts: int
    turns: int
    solved: float | None
    agent_latency: float | None
    batch_latency: float
    throughput: float | None
    generation_seconds: float
    tool_seconds: float
    generation_tool_ratio: float | None
    verified: int
    match_rate: float | None
    time_weighted_match_rate: float | None
    nonempty_match_rate: float | None
    match_rate_by_source: dict[str, float]
    late: int
    hit_rate: float | None
    prediction_lead: float | None
    hidden_seconds: float
    pipeline_efficiency: float | None
    discarded_tokens: float | None

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary, keyed like the attributes."""
        return asdict(self)


def measure(run: Measurable) -> Measures:
    """Computes every measure of one collection, or of its trace."""
    trajectories, turns = run.trajectories, run.turns
    generation = sum(turn.generation.seconds for turn in turns if turn.generation is not None)
    tool = sum(turn.tool.seconds for turn in turns)
    verified = [(prediction, turn.tool.seconds) for turn in turns for prediction in turn.predictions]
    hidden = sum(turn.hidden_seconds for turn in turns)
    followed = [turn for turn in turns if turn.turn > 0]
    return Measures(
        rollouts=len(trajectories),
        turns=len(turns),
        solved=_ratio(sum(trajectory.reward > 0 for trajectory in trajectories), len(trajectories)),
        agent_latency=_ratio(sum(trajectory.seconds for trajectory in trajectories), len(trajectories)),
        batch_latency=run.seconds,
        throughput=_ratio(3600 * len(trajectories), run.seconds),
        generation_seconds=generation,
        tool_seconds=tool,
        generation_tool_ratio=_ratio(generation, tool),
        verified=len(verified),
        match_rate=_ratio(sum(prediction.matched for prediction, _ in verified), len(verified)),
        time_weighted_match_rate=_ratio(
            sum(seconds * prediction.matched for prediction, seconds in verified),
            sum(seconds for _, seconds in verified),
        ),
        nonempty_match_rate=_match_rate(prediction for prediction, _ in verified if not prediction.empty),
        match_rate_by_source=_by_source(prediction for prediction, _ in verified),
        late=sum(turn.late for turn in turns),
        hit_rate=_ratio(sum(turn.hit for turn in followed), len(followed)),
        prediction_lead=_ratio(
            sum(seconds for _, seconds in verified), sum(prediction.span.seconds for prediction, _ in verified)
        ),
        hidden_seconds=hidden,
        pipeline_efficiency=_ratio(hidden, sum(turn.hidable_seconds for turn in turns)),
        discarded_tokens=_ratio(discarded_tokens(turns), len(trajectories)),
    )


def discarded_tokens(turns: Iterable[TurnRecord]) -> int:
    """Tokens that were generated for futures that did not come true."""
    return sum(future.tokens for turn in turns for future in turn.futures if future.fate is not Fate.KEPT)


def share_of_limit(sequential: float, ours: float, oracle: float) -> float | None:
    """(sequential - ours) / (sequential - oracle): how much of what could be saved was saved.

    Args:
        sequential: Latency without speculation, in seconds.
        ours: Latency with it.
        oracle: Latency of a run whose world model knows each observation at once (at the same depth, or unbounded).

    Returns:
        The share, or ``None`` where the oracle saves nothing.
    """
    return _ratio(sequential - ours, sequential - oracle) if sequential > oracle else None


@dataclass(frozen=True, slots=True)
class Spread:
    """A repeated measurement.

    Attributes:
        median: Its median.
        low: Its first quartile.
        high: Its third quartile.
        repeats: How often it was measured.
    """

    median: float
    low: float
    high: float
    repeats: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of a non-empty sequence of measurements."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0], 1)
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(statistics.median(values), low, high, len(values))


def _ratio(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator else None


def _match_rate(predictions: Iterable[PredictionRecord]) -> float | None:
    matched = [prediction.matched for prediction in predictions]
    return _ratio(sum(matched), len(matched))


def _by_source(predictions: Iterable[PredictionRecord]) -> dict[str, float]:
    matches: dict[str, list[bool]] = defaultdict(list)
    for prediction in predictions:
        matches[prediction.source].append(prediction.matched)
    return {source: sum(matched) / len(matched) for source, matched in sorted(matches.items())}
