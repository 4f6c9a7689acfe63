"""A selector that weighs, at every turn, what speculation would hide against what it would cost everybody.

A generation on a prediction that comes true hides seconds under the tool: the smaller of what is left of the tool's
run and of what the generation takes. One that does not come true still hides what of it is sampled again, from the
draft it becomes; otherwise it has cost every generation that ran beside it a share of a step, and all of them the
reading of its prompt. Both are expectations over what was seen so far: how often predictions match, by source and kind
of action; how long tools and generations take, in quantiles; how a step slows with its batch. An engine that is kept
busy anyway gains nothing by starting early, so what is hidden counts only for the part of the engine that is free; and
so it is with processors that the engine shares with the tools.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from obsspec_gym.agents.engine.base import EngineLoad
from obsspec_gym.agents.history import History
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.speculation.command_kind import command_kind
from obsspec_gym.speculation.estimates import (
    KINDS,
    QUANTILES,
    Durations,
    DurationsByKind,
    Rates,
    StepCosts,
    lognormal_quantiles,
    mean_minimum,
)
from obsspec_gym.speculation.record import TurnRecord
from obsspec_gym.speculation.selector import Budget, Candidate, Selector
from obsspec_gym.types import Action, EpisodeId

PRIOR_MATCH = 0.5
PRIOR_NEXT = 0.3
"""Of the probability that better predictions left, a further one takes this share, until it is known."""

PRIOR_AGAIN = 0.3
"""The next action after a wrong prediction is often the same for some tokens, or altogether."""

CERTAIN = 0.98
LEAST_CHANCE = 0.02
"""Less likely candidates are never generated on."""

READING = 0.2
"""A generation's prompt weighs on the engine like this share of the generation."""

QUEUE = 0.5
"""An engine is saturated where lately so many committed requests waited for each that ran."""

ARRIVING = 2.0
"""Of those that wait, so many may only wait for the step under way to end."""

FULL = 0.8
"""Share of the engine's cache that real histories and speculation may fill together."""

_NEVER = 1e-9
"""The chance of what is generated on for its draft alone."""

_LOOK_BACK = 64
"""So many events back it is looked for the same action."""

LOOK_AGAIN = 8
"""Where speculation does not pay, predictions are still compared with the truth at every this-many-th turn."""

Case: TypeAlias = tuple[Hashable, bool]
"""A kind of action, and whether the episode has had this very action before."""


@dataclass(frozen=True, slots=True)
class Price:
    """What a speculative generation costs those that run beside it.

    Attributes:
        share: The share of each of its seconds that they lose, all together; and that the engine, or what it computes
            on, is not free.
        least: Seconds it is charged for even if it is given up at once, for reading its prompt.
    """

    share: float
    least: float


@dataclass(frozen=True, slots=True)
class Stretch:
    """What a generation on a prediction is expected to come to, in seconds.

    Attributes:
        runs: How long it runs under the tool.
        hides: How much earlier the action is there if the prediction comes true.
    """

    runs: float
    hides: float


class AdaptiveSelector(Selector):
    """Chooses depth and breadth per turn, 0 included, and says why. Needs no tuning.

    Args:
        max_depth: Observations ahead at most.
        max_breadth: Alternatives at each level at most.
        kind: Tells kinds of actions apart: tool times are kept by kind, and match rates by kind and whether the
            episode has had the same action before.
        caution: How much more a lost second counts than one that is hidden.

    Raises:
        InvalidArgumentError: If depth or breadth is below 1, or caution below 0.

    Example:
        >>> from obsspec_gym.agents.history import History
        >>> selector = AdaptiveSelector()
        >>> acted = History.start(EpisodeId("task"), "do it").act("make test")
        >>> selector.budget(acted).depth > 0
        True
    """

    def __init__(
        self,
        max_depth: int = 8,
        max_breadth: int = 4,
        *,
        kind: Callable[[Action], Hashable] = command_kind,
        caution: float = 1.1,
    ) -> None:
        if max_depth < 1 or max_breadth < 1 or caution < 0:
            raise InvalidArgumentError(
                "an adaptive selector needs max_depth >= 1, max_breadth >= 1 and caution >= 0, got "
                f"{max_depth}, {max_breadth} and {caution}"
            )
        self._max_depth = max_depth
        self._max_breadth = max_breadth
        self._kind = kind
        self._caution = caution
        self._load: Callable[[], EngineLoad] = EngineLoad
        self._matches = Rates()
        self._tools = DurationsByKind(0.5, 1.2)
        self._predictions = Durations(lambda: lognormal_quantiles(0.05, 0.5))
        self._generations = Durations(lambda: lognormal_quantiles(1.0, 0.5))
        self._steps = StepCosts()
        self._running = self._queue = 0.0
        self._chances = PRIOR_MATCH  # of what was generated on, lately
        self._again = Rates(weight=3.0)  # which part of a discarded generation is sampled again, from its draft
        self._discarded: set[EpisodeId] = set()  # whose next generation has a draft, if anything was generated
        self._begun: dict[EpisodeId, tuple[float, int]] = {}  # sequences beside its generation; its tokens
        self._live = 0  # tokens of all of them
        self._passed: dict[Hashable, int] = {}
        self._deficits: tuple[int, tuple[float, ...]] = (-1, ())

    @property
    def depth(self) -> int:
        """Observations ahead at most."""
        return self._max_depth

    def __repr__(self) -> str:
        return f"AdaptiveSelector(max_depth={self._max_depth}, max_breadth={self._max_breadth})"

    def attach(self, load: Callable[[], EngineLoad]) -> None:
        """Is told how to ask how busy the policy's engine is."""
        self._load = load

    def budget(self, acted: History) -> Budget:
        """The deepest and broadest speculation each level and alternative of which is expected to pay."""
        load, kind = self._load(), self._kind(acted.last_action)
        self._running += 0.1 * (load.running - self._running)
        beside, _ = self._begun.get(acted.episode, (float(load.running), 0))
        self._file(acted, (beside + load.running) / 2)
        price = self._price(load)
        case = _case(acted, kind)
        tools, asking = self._tools.of(kind), _median(self._predictions.quantiles())
        stretch = self._stretch(tools, asking, 1, _outlasting(tools, asking))
        if stretch.hides <= 0.0:
            return self._look(case, LOOK_AGAIN, f"tools of {_median(tools):.3g} s end before a prediction is there")
        chances = self._ranks(case)
        said = f"match {chances[0]:.2f}, hides {stretch.hides:.3g} s, price {price.share:.2f}"
        gains = [self._gain(self._use(chance, rank, kind), stretch, price) for rank, chance in enumerate(chances)]
        breadth = max((rank + 1 for rank, gain in enumerate(gains) if gain > 0.0), default=0)
        asked = self._caution * load.contended * asking  # a world model computes as well
        if breadth and max(gains) > asked:
            return Budget(self._depth(tools, asking, max(chances), price), breadth, said)
        if load.contended and self._gain(CERTAIN, stretch, price) <= asked:  # learning costs, too
            return self._look(case, LOOK_AGAIN, f"{said}: not even what is certain would pay")
        if self._matches.seen((0,)) >= QUANTILES:
            return self._look(case, LOOK_AGAIN if self._matches.seen((0, *case)) >= QUANTILES else 1, said)
        return Budget(1, min(2, self._max_breadth), f"{said}: nothing known yet, as probable as predictions say")

    def chance(self, candidate: Candidate) -> float:
        """The candidate's calibrated chance, if what is left of the tool's run makes it worth its price."""
        if not candidate.budget.generate:
            return 0.0
        kind = self._kind(candidate.acted.last_action)
        case = _case(candidate.acted, kind)
        prediction = candidate.prediction
        # Of itself a world model that cannot tell says 1: then the rate at which predictions match says more.
        told = prediction.probability
        prior = told if told < 1 else min(CERTAIN, self._ranks(case)[min(candidate.rank, self._max_breadth - 1)])
        names = _names(prediction.source, prediction.probability, candidate.rank, kind)
        chance = candidate.reached * self._matches.of(names, prior)
        use = self._use(chance, candidate.rank, kind) if candidate.level == 1 else chance
        if use < LEAST_CHANCE:
            return 0.0
        # At deeper levels the tool that runs is still the real turn's.
        tools = self._tools.of(self._kind(_real_action(candidate)))
        if candidate.elapsed >= tools[-1]:
            tools = (2 * candidate.elapsed,)  # longer than all before: what has run long runs on
        stretch = self._stretch(tools, candidate.elapsed, candidate.level, 1.0)
        if self._gain(use, stretch, self._price(self._load())) <= 0.0:
            return 0.0
        self._chances += 0.1 * (use - self._chances)
        return max(chance, _NEVER)

    def observe(self, acted: History, record: TurnRecord) -> None:
        """Learns how long this turn took, and which of its predictions matched."""
        kind = self._kind(acted.last_action)
        case = _case(acted, kind)
        self._tools.add(kind, record.tool.seconds)
        for prediction in record.predictions:
            names = _names(prediction.source, prediction.probability, prediction.rank, kind)
            self._matches.add([*_rates(prediction.rank, case), *names], prediction.matched)
            self._predictions.add(prediction.span.seconds)
        if record.late:
            self._predictions.add(1.5 * record.tool.seconds)  # at least the tool's time; how much more is unknown
        if acted.episode in self._discarded and not record.hit:
            assert acted.parent is not None
            before = self._kind(acted.parent.last_action)
            self._again.add([(), (before,)], record.accepted / record.draft if record.draft else 0.0)
        self._discarded.discard(acted.episode)
        if any(future.depth == 1 for future in record.futures):
            self._discarded.add(acted.episode)
        beside, _ = self._begun.get(acted.episode, (1.0, 0))
        if record.generation is not None:
            self._generations.add(record.generation.seconds)
            self._steps.add(record.tokens, record.generation.seconds, max(1.0, beside))
        self._file(acted, float(self._load().running) + 1)

    def forget(self, episode: EpisodeId) -> None:
        """An episode is over: it no longer weighs on the engine's cache."""
        _, length = self._begun.pop(episode, (0.0, 0))
        self._live -= length
        self._discarded.discard(episode)

    def _file(self, acted: History, running: float) -> None:
        """Writes down how many run beside an episode's generation, and how long the episode is by now."""
        _, length = self._begun.get(acted.episode, (0.0, 0))
        self._live += acted.length - length
        self._begun[acted.episode] = running, acted.length

    def _look(self, case: Case, every: int, why: str) -> Budget:
        """No speculation; now and then at least a look at how good predictions are."""
        if len(self._passed) > KINDS:
            self._passed.clear()
        passed = self._passed[case] = self._passed.get(case, 0) + 1
        if passed % every == 0:
            return Budget(1, min(4, self._max_breadth), f"{why}: only compared", generate=False)
        return Budget(0, 1, why)

    def _ranks(self, case: Case) -> list[float]:
        """The probabilities that the predictions of each rank match, whatever they say of themselves."""
        left, rates = 1.0, []
        for rank in range(self._max_breadth):
            prior = PRIOR_MATCH if rank == 0 else PRIOR_NEXT * left
            rate = self._matches.of(_rates(rank, case), prior)
            left = max(0.0, left - rate)
            rates.append(rate if rate >= LEAST_CHANCE else 0.0)
        return rates

    def _stretch(self, tools: Sequence[float], elapsed: float, level: int, share: float) -> Stretch:
        """What a generation begun when a tool has run for ``elapsed`` seconds comes to.

        Args:
            tools: Quantiles of the tool's seconds.
            elapsed: Seconds.
            level: Observations ahead. At a deeper level only that counts which the turn's own tool will not cover.
            share: How likely it is that the tool runs for so long.
        """
        left = [seconds - elapsed for seconds in tools if seconds > elapsed]
        generations = self._generations.quantiles()
        runs = share * mean_minimum(left, generations)
        return Stretch(runs, runs if level == 1 else share * mean_minimum(left, self._uncovered()))

    def _uncovered(self) -> tuple[float, ...]:
        """Quantiles of the part of a generation that its own turn's tool does not cover."""
        known = self._generations.added // 8
        if self._deficits[0] != known:
            asking = _median(self._predictions.quantiles())
            generations, tools = self._generations.quantiles(), self._tools.all.quantiles()
            values = sorted(
                max(0.0, generation - max(0.0, tool - asking)) for generation in generations for tool in tools
            )
            self._deficits = known, tuple(values[QUANTILES // 2 :: QUANTILES])
        return self._deficits[1]

    def _use(self, chance: float, rank: int, kind: Hashable) -> float:
        """How much of a generation on a prediction is expected to be of use: all of it, or as a draft.

        One discarded generation a turn becomes a draft: that on the likeliest prediction.
        """
        return chance if rank else chance + (1 - chance) * self._again.of([(), (kind,)], PRIOR_AGAIN)

    def _gain(self, use: float, stretch: Stretch, price: Price) -> float:
        """Expected seconds that a generation on a prediction saves all agents together."""
        lost = price.share * (stretch.runs + price.least)
        return use * stretch.hides * (1 - price.share) - self._caution * (1 - use) * lost

    def _depth(self, tools: Sequence[float], asking: float, first: float, price: Price) -> int:
        generation = _median(self._generations.quantiles())
        elsewhere = self._matches.of([(0,)], PRIOR_MATCH)
        chance, elapsed, depth = first, asking, 1
        while depth < self._max_depth:
            chance, elapsed = chance * elsewhere, elapsed + generation + asking
            stretch = self._stretch(tools, elapsed, depth + 1, _outlasting(tools, elapsed))
            if chance < LEAST_CHANCE or self._gain(chance, stretch, price) <= 0.0:
                break
            depth += 1
        return depth

    def _price(self, load: EngineLoad) -> Price:
        """What one more sequence costs those that run, at the load of this moment and of late."""
        self._queue += 0.1 * (max(0, load.waiting - load.speculative) - self._queue)
        if self._queue > max(ARRIVING, QUEUE * load.running) or self._crowded(load):
            return Price(1.0, 0.0)
        committed = max(0.0, load.running - load.speculative)
        others = 0.5 * (committed + min(self._running, float(load.running))) + self._chances * load.speculative
        share = max(load.contended, self._steps.cost().share(others, load.running + 1.0))
        return Price(share, READING * _median(self._generations.quantiles()))

    def _crowded(self, load: EngineLoad) -> bool:
        """Whether what real histories hold, and speculation adds, would not fit into the engine's cache."""
        return 0 < FULL * load.capacity_tokens < self._live


def _case(acted: History, kind: Hashable) -> Case:
    """The kind of the last action, and whether it was done before: what it brings can be told of the second only."""
    action, node = acted.last_action, acted.parent
    for _ in range(_LOOK_BACK if isinstance(action, str) else 0):
        if node is None:
            break
        if node.is_action and node.value == action:
            return kind, True
        node = node.parent
    return kind, False


def _rates(rank: int, case: Case) -> list[Hashable]:
    """Under which names a match is counted whatever its prediction said, from the general to the special."""
    return [(rank,), (rank, case[0]), (rank, *case)]


def _names(source: str, probability: float, rank: int, kind: Hashable) -> list[Hashable]:
    """Under which names a prediction's success is counted, from the general to the special."""
    tenth = min(9, int(10 * probability))
    return [("of", source, rank, tenth), ("of", source, rank, tenth, kind)]


def _real_action(candidate: Candidate) -> Action:
    """The action whose tool is running."""
    node = candidate.acted
    for _ in range(2 * (candidate.level - 1)):
        assert node.parent is not None
        node = node.parent
    return node.last_action


def _outlasting(values: Sequence[float], seconds: float) -> float:
    """The share of ascending values above some seconds."""
    return 1 - bisect_right(values, seconds) / len(values)


def _median(values: Sequence[float]) -> float:
    return values[len(values) // 2]
