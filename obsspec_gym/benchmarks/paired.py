"""Two answers to each of the same questions: is one better, or was it luck?"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from random import Random


def mcnemar(first: Sequence[bool], second: Sequence[bool]) -> float:
    """The exact two-sided McNemar test of paired yes-or-no outcomes.

    Args:
        first: One outcome a question.
        second: The other's outcome to the same questions.

    Returns:
        The probability of at least so uneven a split of the questions that only one of them got right, if each of
        them was as likely to be the one.

    Example:
        >>> mcnemar([True] * 5, [False] * 5)
        0.0625
    """
    only = [one for one, other in zip(first, second, strict=True) if one != other]
    fewer = min(sum(only), len(only) - sum(only))
    tail = sum(math.comb(len(only), count) for count in range(fewer + 1))
    return min(1.0, 2 * tail / (1 << len(only)))


def bootstrap(
    differences: Sequence[float], clusters: Sequence[Hashable], *, seed: int, draws: int = 1000
) -> tuple[float, float]:
    """The 95 % interval of a mean whose terms come in clusters: whole clusters are drawn again, with replacement.

    Args:
        differences: The terms.
        clusters: What each belongs to; terms of one cluster may go together.
        seed: Seeds the draws.
        draws: How many.

    Example:
        >>> bootstrap([1.0, 1.0, 1.0], ["a", "b", "b"], seed=0)
        (1.0, 1.0)
    """
    sums: dict[Hashable, list[float]] = defaultdict(list)
    for difference, cluster in zip(differences, clusters, strict=True):
        sums[cluster].append(difference)
    totals = [(sum(terms), len(terms)) for terms in sums.values()]
    random = Random(seed)
    means = []
    for _ in range(draws):
        drawn = random.choices(totals, k=len(totals))
        means.append(sum(total for total, _ in drawn) / sum(count for _, count in drawn))
    means.sort()
    return means[int(0.025 * draws)], means[min(draws - 1, int(0.975 * draws))]
