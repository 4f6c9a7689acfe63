"""What a trace comes to: the run's measures, and the same split up by command, by selector reason and by source."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from obsspec_gym.speculation.metrics import Measures, discarded_tokens, measure
from obsspec_gym.speculation.record import Fate, PredictionRecord, TurnRecord
from obsspec_gym.speculation.trace import Trace
from obsspec_gym.types import EpisodeId


@dataclass(frozen=True, slots=True)
class Part:
    """Some of a run's turns: what their tools took, and what was gained and lost under them.

    Attributes:
        turns: How many.
        tool_seconds: What their tools took.
        verified: Predictions of their outcomes that were there in time.
        matched: Those that came true exactly.
        late: How many times the predictions were not there in time.
        followed: Turns that another followed.
        hits: Of these, how many had the next action begun ahead.
        hidden_seconds: Generation time of the next action that ran under the tool and was kept.
        discarded_tokens: Tokens of futures that were given up when their outcome was known.
    """

    turns: int
    tool_seconds: float
    verified: int
    matched: int
    late: int
    followed: int
    hits: int
    hidden_seconds: float
    discarded_tokens: int

    @property
    def match_rate(self) -> float | None:
        """Exact matches / verified predictions."""
        return self.matched / self.verified if self.verified else None

    @property
    def hit_rate(self) -> float | None:
        """Hits / turns that another followed."""
        return self.hits / self.followed if self.followed else None

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary."""
        return {**asdict(self), "match_rate": self.match_rate, "hit_rate": self.hit_rate}


@dataclass(frozen=True, slots=True)
class Summary:
    """A trace's summary.

    Attributes:
        measures: Those of the run.
        fates: How many futures had which outcome.
        by_kind: The turns by kind of command.
        by_reason: The turns by what the selector gave as its reason, numbers in it left out.
        sources: For each source of predictions: verified, matched, mean probability it gave itself.
    """

    measures: Measures
    fates: dict[str, int]
    by_kind: dict[str, Part]
    by_reason: dict[str, Part]
    sources: dict[str, dict[str, float]]

    def to_json(self) -> dict[str, Any]:
        """The measures at the top, the rest below them."""
        return {
            **self.measures.to_json(),
            "futures": self.fates,
            "by_kind": {name: part.to_json() for name, part in self.by_kind.items()},
            "by_reason": {name: part.to_json() for name, part in self.by_reason.items()},
            "sources": self.sources,
        }


def summarise(trace: Trace) -> Summary:
    """Computes the summary. Every part adds up to the whole."""
    following = {(turn.episode, turn.turn): turn for turn in trace.turns}
    fates = Counter(future.fate for turn in trace.turns for future in turn.futures)
    fates[Fate.KEPT] += sum(turn.hit for turn in trace.turns)
    return Summary(
        measures=measure(trace),
        fates={fate.name: fates[fate] for fate in Fate},
        by_kind=_parts(trace.turns, following, lambda turn: turn.kind or "?"),
        by_reason=_parts(trace.turns, following, lambda turn: _without_numbers(turn.reason)),
        sources=_sources(trace.turns),
    )


def _parts(
    turns: Sequence[TurnRecord],
    following: dict[tuple[EpisodeId, int], TurnRecord],
    name_of: Callable[[TurnRecord], str],
) -> dict[str, Part]:
    """The parts of a division, the one with the longest tools first."""
    groups: dict[str, list[TurnRecord]] = defaultdict(list)
    for turn in turns:
        groups[name_of(turn)].append(turn)
    parts = {name: _part(group, following) for name, group in groups.items()}
    return dict(sorted(parts.items(), key=lambda item: (-item[1].tool_seconds, item[0])))


def _part(turns: Sequence[TurnRecord], following: dict[tuple[EpisodeId, int], TurnRecord]) -> Part:
    after = [following.get((turn.episode, turn.turn + 1)) for turn in turns]
    next_turns = [turn for turn in after if turn is not None]
    return Part(
        turns=len(turns),
        tool_seconds=sum(turn.tool.seconds for turn in turns),
        verified=sum(len(turn.predictions) for turn in turns),
        matched=sum(prediction.matched for turn in turns for prediction in turn.predictions),
        late=sum(turn.late for turn in turns),
        followed=len(next_turns),
        hits=sum(turn.hit for turn in next_turns),
        hidden_seconds=sum(turn.hidden_seconds for turn in next_turns),
        discarded_tokens=discarded_tokens(turns),
    )


def _without_numbers(reason: str) -> str:
    """Reasons that differ in figures only are the same reason."""
    words = [word if not any(sign.isdigit() for sign in word) else "…" for word in reason.split()]
    return " ".join(words) or "none given"


def _sources(turns: Sequence[TurnRecord]) -> dict[str, dict[str, float]]:
    groups: dict[str, list[PredictionRecord]] = defaultdict(list)
    for turn in turns:
        for prediction in turn.predictions:
            groups[prediction.source].append(prediction)
    return {
        source: {
            "verified": len(group),
            "matched": sum(prediction.matched for prediction in group),
            "mean_probability": sum(prediction.probability for prediction in group) / len(group),
        }
        for source, group in sorted(groups.items())
    }
