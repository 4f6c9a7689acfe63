"""What a selector learns while it runs: how often predictions match, how long things take, what load costs."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from statistics import NormalDist

import numpy as np

QUANTILES = 16
"""A distribution is kept as this many of its quantiles."""

KINDS = 1024
"""So many kinds are told apart; of more, those not seen for longest are forgotten: models write any command."""


class Rates:
    """Frequencies of yes, or shares, each drawn towards that of the more general case until it is known itself.

    Args:
        weight: How many observations the more general case counts as.

    Example:
        >>> rates = Rates(weight=2.0)
        >>> rates.add(["ls"], True)
        >>> rates.of(["ls"], prior=0.5)
        0.6666666666666666
    """

    def __init__(self, weight: float = 6.0) -> None:
        self._weight = weight
        self._seen: OrderedDict[Hashable, tuple[int, float]] = OrderedDict()

    def add(self, names: Iterable[Hashable], yes: float) -> None:
        """Counts an observation under each of its names: yes, no, or a share in [0, 1]."""
        for name in names:
            count, before = self._seen.get(name, (0, 0.0))
            self._seen[name] = count + 1, before + yes
            self._seen.move_to_end(name)
        while len(self._seen) > 16 * KINDS:
            self._seen.popitem(last=False)

    def seen(self, name: Hashable) -> int:
        """How many observations bear a name."""
        count, _ = self._seen.get(name, (0, 0.0))
        return count

    def of(self, names: Iterable[Hashable], prior: float) -> float:
        """The rate under the last of some names, which go from the general to the special."""
        rate = prior
        for name in names:
            if name in self._seen:
                count, yes = self._seen[name]
                rate = (yes + self._weight * rate) / (count + self._weight)
        return rate


class Durations:
    """The latest seconds of something, as quantiles; while few are known they are filled up with others.

    Args:
        rest: Quantiles of what they are filled up with, ascending.
        keep: How many of the latest are kept.
    """

    def __init__(self, rest: Callable[[], Sequence[float]], keep: int = 64) -> None:
        self._rest = rest
        self._latest: deque[float] = deque(maxlen=keep)
        self._made = 0
        self._quantiles: tuple[float, ...] = ()
        self.added = 0

    def add(self, seconds: float) -> None:
        """One more."""
        self._latest.append(seconds)
        self.added += 1

    def quantiles(self) -> tuple[float, ...]:
        """:data:`QUANTILES` of them, ascending."""
        # Sorted anew after every eighth of what is known, or whenever little is.
        if self._made < QUANTILES or self.added - self._made >= min(self._made, 64) // 8:
            known = sorted(self._latest)
            filled = _quantiles(self._rest(), QUANTILES - len(known)) if len(known) < QUANTILES else ()
            self._quantiles = tuple(sorted([*_quantiles(known, min(QUANTILES, len(known))), *filled]))
            self._made = self.added
        return self._quantiles


class DurationsByKind:
    """Seconds by kind; a kind that is little known is filled up with what all kinds take, and that with a prior.

    Args:
        median: Of the prior, which is lognormal.
        sigma: Its standard deviation of the logarithm.

    Attributes:
        all: Those of all kinds.
    """

    def __init__(self, median: float, sigma: float) -> None:
        self.all = Durations(lambda: lognormal_quantiles(median, sigma), keep=256)
        self._kinds: OrderedDict[Hashable, Durations] = OrderedDict()

    def add(self, kind: Hashable, seconds: float) -> None:
        """One more."""
        self.all.add(seconds)
        if kind not in self._kinds:
            self._kinds[kind] = Durations(self.all.quantiles)
        self._kinds[kind].add(seconds)
        self._kinds.move_to_end(kind)
        if len(self._kinds) > KINDS:
            self._kinds.popitem(last=False)

    def of(self, kind: Hashable) -> tuple[float, ...]:
        """Quantiles of a kind's seconds, ascending."""
        known = self._kinds.get(kind)
        return self.all.quantiles() if known is None else known.quantiles()


@lru_cache(maxsize=64)
def lognormal_quantiles(median: float, sigma: float) -> tuple[float, ...]:
    """:data:`QUANTILES` of a lognormal distribution, ascending."""
    normal = NormalDist()
    return tuple(median * math.exp(sigma * normal.inv_cdf((index + 0.5) / QUANTILES)) for index in range(QUANTILES))


def _quantiles(values: Sequence[float], count: int) -> tuple[float, ...]:
    """So many evenly spaced quantiles of ascending values."""
    size = len(values)
    return tuple(values[int((index + 0.5) * size / count)] for index in range(count))


def mean_minimum(left: Sequence[float], right: Sequence[float]) -> float:
    """The mean of the smaller of two independent numbers, each drawn from an ascending list.

    Example:
        >>> mean_minimum([1.0, 3.0], [2.0])
        1.5
    """
    if not left or not right:
        return 0.0
    sums = [0.0, *accumulate(right)]
    count = len(right)
    total = 0.0
    for value in left:
        below = bisect_left(right, value)
        total += sums[below] + value * (count - below)
    return total / (count * len(left))


@dataclass(frozen=True, slots=True)
class StepCost:
    """What a generation takes: ``read + tokens * (step + sequence * running)`` seconds.

    Attributes:
        read: Seconds before its first token.
        step: Seconds a token if it runs alone.
        sequence: More for each sequence that runs beside it.
    """

    read: float
    step: float
    sequence: float

    def share(self, others: float, running: float) -> float:
        """By which share ``others`` sequences are slowed by one more, when ``running`` run."""
        seconds = self.step + self.sequence * running
        return min(1.0, others * self.sequence / seconds) if seconds > 0 else 0.0


class StepCosts:
    """Learns :class:`StepCost` from generations: ridge regression that forgets.

    Until something is known of how load tells, a step is taken to double with every :data:`DOUBLES` sequences.

    Args:
        memory: How many generations it remembers, about.
    """

    DOUBLES = 64.0
    _EVERY = 8

    def __init__(self, memory: float = 512.0) -> None:
        self._keep = 1 - 1 / memory
        self._squares = np.zeros((3, 3))
        self._products = np.zeros(3)
        self._tokens = self._seconds = self._loaded = self._weight = 0.0
        self._new = 0
        self._cost = StepCost(0.0, self.DOUBLES, 1.0)  # in whatever unit: only shares mean something before the first

    def add(self, tokens: int, seconds: float, running: float) -> None:
        """One generation of ``tokens`` took ``seconds`` while ``running`` sequences ran, itself included."""
        if tokens < 1 or seconds <= 0:
            return
        # What a generation varies by grows with its length: weighted so that long and short ones count alike.
        features = np.array([1.0, tokens, tokens * running / self.DOUBLES])
        self._squares = self._keep * self._squares + np.outer(features, features) / tokens
        self._products = self._keep * self._products + features * (seconds / tokens)
        self._weight = self._keep * self._weight + 1
        self._tokens = self._keep * self._tokens + tokens
        self._seconds = self._keep * self._seconds + seconds
        self._loaded = self._keep * self._loaded + tokens * running
        self._new += 1

    def cost(self) -> StepCost:
        """The present estimate; before the first generation in no unit of time."""
        if self._new >= self._EVERY or (self._new and self._weight < self._EVERY):
            self._new = 0
            self._cost = self._solve()
        return self._cost

    def _solve(self) -> StepCost:
        running = self._loaded / self._tokens
        alone = self._seconds / self._tokens / (1 + running / self.DOUBLES)
        prior = np.array([0.0, alone, alone])
        mean_tokens = self._tokens / self._weight
        precision = 4.0 * mean_tokens * np.diag([1 / mean_tokens**2, 1.0, max(0.05, running / self.DOUBLES) ** 2])
        read, step, sequence = np.linalg.solve(self._squares + precision, self._products + precision @ prior)
        # Where a cache is too small or a queue forms, more is slower for other reasons and the slope comes out flat or
        # negative: a sequence is never taken to cost less than a quarter of what was supposed at first.
        sequence = max(0.25 * alone, float(sequence)) / self.DOUBLES
        return StepCost(max(0.0, float(read)), max(0.05 * alone, float(step)), sequence)
