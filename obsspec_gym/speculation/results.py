"""What an experiment came to: the same episodes run in several modes, and the ratios between these."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from obsspec_gym.speculation.collector import Collection
from obsspec_gym.speculation.comparison import Cause, Comparison, compare
from obsspec_gym.speculation.metrics import Measures, Spread, share_of_limit
from obsspec_gym.speculation.record import TurnRecord

OBSERVED = frozenset({Cause.OBSERVATION, Cause.OBSERVATION_TIME})
"""Causes that lie in the world, not in the speculation (invariant I2b)."""


class Mode(enum.Enum):
    """How the episodes are run."""

    SEQUENTIAL = "sequential"
    """Without speculation."""
    SPECULATIVE = "speculative"
    """With the world model."""
    ORACLE = "oracle"
    """With the observations of the sequential run, known at once, at the same depth: the D-limit."""
    LIMIT = "limit"
    """The same at unbounded depth."""


@dataclass(frozen=True)
class Run:
    """One collection of an experiment.

    Attributes:
        mode: How the episodes were run.
        repeat: Which repeat it belongs to, from 0.
        collection: What it brought.
        measures: What that came to.
    """

    mode: Mode
    repeat: int
    collection: Collection
    measures: Measures


@dataclass(frozen=True)
class ExperimentResult:
    """All runs of an experiment. Every figure is a median over the repeats.

    Attributes:
        runs: The runs, in the order in which they ended.
    """

    runs: tuple[Run, ...]

    def of(self, mode: Mode) -> list[Run]:
        """The runs of one mode, by repeat."""
        return sorted((run for run in self.runs if run.mode is mode), key=lambda run: run.repeat)

    def spreads(self, mode: Mode) -> dict[str, Spread]:
        """Every measure of one mode that is a number in all its runs, by name."""
        return _spreads([run.measures.to_json() for run in self.of(mode)])

    @property
    def agent_latency_ratio(self) -> Spread | None:
        """Agent latency with speculation / without."""
        return self._over(lambda sequential, ours: ours / sequential, Mode.SEQUENTIAL, Mode.SPECULATIVE)

    @property
    def share_of_d_limit(self) -> Spread | None:
        """How much of what the oracle saves at the same depth was saved."""
        return self._over(share_of_limit, Mode.SEQUENTIAL, Mode.SPECULATIVE, Mode.ORACLE)

    @property
    def share_of_limit(self) -> Spread | None:
        """How much of what the oracle saves at unbounded depth was saved."""
        return self._over(share_of_limit, Mode.SEQUENTIAL, Mode.SPECULATIVE, Mode.LIMIT)

    @property
    def comparison(self) -> Comparison:
        """Every speculative run (the oracle's too) against the sequential run of its repeat, put together."""
        references = {run.repeat: run.collection for run in self.of(Mode.SEQUENTIAL)}
        return _together(
            [
                compare(references[run.repeat].trajectories, run.collection.trajectories)
                for run in self.runs
                if run.mode is not Mode.SEQUENTIAL and run.repeat in references
            ]
        )

    @property
    def turns_by_mode(self) -> dict[str, tuple[TurnRecord, ...]]:
        """The records of the first repeat's turns, by mode: what :func:`draw_timeline` draws."""
        return {run.mode.value: run.collection.turns for run in self.runs if run.repeat == 0}

    def to_json(self) -> dict[str, Any]:
        """One plain dictionary.

        At the top the measures of the speculative runs, but ``generation_tool_ratio`` of the sequential ones (it is
        what bounds a saving), the ratios between modes, ``mismatches`` (episodes in which the policy did something
        else after equal observations), ``observation_differences`` (episodes whose first difference is an
        observation) and ``differences`` (how often each cause came first). Under ``modes`` the measures of each
        mode; where there were repeats, figures are medians and ``spread`` has the quartiles.
        """
        modes = {mode.value: _medians(self, mode) for mode in Mode if self.of(mode)}
        main = modes.get(Mode.SPECULATIVE.value) or next(iter(modes.values()))
        ratios = {
            "agent_latency_ratio": self.agent_latency_ratio,
            "share_of_d_limit": self.share_of_d_limit,
            "share_of_limit": self.share_of_limit,
        }
        comparison = self.comparison
        observed = sum(difference.cause in OBSERVED for difference in comparison.differences)
        result = {
            **main,
            **{name: None if spread is None else spread.median for name, spread in ratios.items()},
            "mismatches": len(comparison.differences) - observed,
            "observation_differences": observed,
            "differences": comparison.causes,
            "compared_turns": comparison.turns,
            "compared_tokens": comparison.tokens,
            "repeats": max(run.repeat for run in self.runs) + 1,
            "modes": modes,
        }
        if Mode.SEQUENTIAL.value in modes:
            result["generation_tool_ratio"] = modes[Mode.SEQUENTIAL.value]["generation_tool_ratio"]
        if result["repeats"] > 1:
            spreads = self.spreads(Mode.SPECULATIVE) | {name: spread for name, spread in ratios.items() if spread}
            result["spread"] = {name: asdict(spread) for name, spread in spreads.items()}
        return result

    def _over(self, function: Callable[..., float | None], *modes: Mode) -> Spread | None:
        """The spread, over the repeats, of a function of the agent latencies of some modes."""
        latencies = [[run.measures.agent_latency for run in self.of(mode)] for mode in modes]
        rows = [[value for value in row if value] for row in zip(*latencies, strict=False)]
        values = [function(*row) for row in rows if len(row) == len(modes)]
        numbers = [value for value in values if value is not None]
        return Spread.of(numbers) if numbers else None


def _medians(result: ExperimentResult, mode: Mode) -> dict[str, Any]:
    """The measures of one mode: of its only run, or the medians of what is a number."""
    runs = result.of(mode)
    measures = runs[0].measures.to_json()
    if len(runs) == 1:
        return measures
    return measures | {name: spread.median for name, spread in result.spreads(mode).items()}


def _spreads(rows: Sequence[dict[str, Any]]) -> dict[str, Spread]:
    spreads: dict[str, Spread] = {}
    for name in rows[0] if rows else ():
        values = [row[name] for row in rows]
        if all(isinstance(value, int | float) for value in values):
            spreads[name] = Spread.of([float(value) for value in values])
    return spreads


def _together(comparisons: Sequence[Comparison]) -> Comparison:
    return Comparison(
        episodes=sum(comparison.episodes for comparison in comparisons),
        turns=sum(comparison.turns for comparison in comparisons),
        tokens=sum(comparison.tokens for comparison in comparisons),
        differences=tuple(difference for comparison in comparisons for difference in comparison.differences),
    )
