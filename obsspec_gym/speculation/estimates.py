"""What a selector learns while it runs: how often predictions match, how long things take, what load costs."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import NormalDist
from typing import Any

import numpy as np

QUANTILES = 16
"""A distribution is kept as this many of its quantiles."""

_NORMAL = NormalDist()


class Rates:
    """Frequencies of yes and no, each drawn towards that of the more general case until it is known itself.

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
        self._seen: dict[Hashable, list[int]] = defaultdict(lambda: [0, 0])

    def add(self, names: Iterable[Hashable], yes: bool) -> None:
        """Counts an observation under each of its names."""
        for name in names:
            counts = self._seen[name]
            counts[0] += 1
            counts[1] += yes

    def seen(self, name: Hashable) -> int:
        """How many observations bear a name."""
        return self._seen[name][0] if name in self._seen else 0

    def of(self, names: Iterable[Hashable], prior: float) -> float:
        """The rate under the last of some names, which go from the general to the special."""
        rate = prior
        for name in names:
            if name in self._seen:
                count, yes = self._seen[name]
                rate = (yes + self._weight * rate) / (count + self._weight)
        return rate


class Durations:
    """Seconds by kind; a kind that is little known is filled up with what all kinds take, and that with a prior.

    Args:
        median: Of the prior, which is lognormal.
        sigma: Its standard deviation of the logarithm.
        keep: How many of the latest are kept of a kind.
    """

    def __init__(self, median: float, sigma: float, keep: int = 64) -> None:
        self._prior = tuple(
            median * math.exp(sigma * _NORMAL.inv_cdf((index + 0.5) / QUANTILES)) for index in range(QUANTILES)
        )
        self._all: deque[float] = deque(maxlen=4 * keep)
        self._kinds: dict[Hashable, deque[float]] = defaultdict(lambda: deque(maxlen=keep))
        self._made: dict[Hashable, tuple[int, tuple[float, ...]]] = {}
        self._added: dict[Hashable, int] = defaultdict(int)

    def add(self, kind: Hashable, seconds: float) -> None:
        """One more."""
        self._all.append(seconds)
        self._kinds[kind].append(seconds)
        self._added[kind] += 1
        self._added[None] += 1

    def __len__(self) -> int:
        return len(self._all)

    def of(self, kind: Hashable) -> tuple[float, ...]:
        """Quantiles of a kind's seconds, ascending."""
        return self._cached(kind, self._kinds.get(kind, ()), self.of_all)

    def of_all(self) -> tuple[float, ...]:
        """Quantiles of the seconds of all kinds, ascending."""
        return self._cached(None, self._all, lambda: self._prior)

    def _cached(self, kind: Hashable, values: Iterable[float], rest: Any) -> tuple[float, ...]:
        """Made anew after every eighth of what is known, or whenever little is."""
        added = self._added[kind] if kind is None or kind in self._added else 0
        made = self._made.get(kind)
        if made is not None and added - made[0] < max(1, min(made[0], 64) // 8) and made[0] >= QUANTILES:
            return made[1]
        known = sorted(values)
        result = _quantiles(known, QUANTILES)
        if len(known) < QUANTILES:
            result = tuple(sorted([*known, *_quantiles(rest(), QUANTILES - len(known))]))
        self._made[kind] = (added, result)
        return result


def _quantiles(values: Sequence[float], count: int) -> tuple[float, ...]:
    """So many evenly spaced quantiles of ascending values."""
    size = len(values)
    return tuple(values[min(size - 1, int((index + 0.5) * size / count))] for index in range(count)) if size else ()


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

    @property
    def known(self) -> float:
        """How many generations it knows of, about."""
        return self._weight

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
