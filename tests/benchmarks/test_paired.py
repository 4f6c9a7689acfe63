"""The paired tests, against scipy and by hand."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from obsspec_gym.benchmarks.paired import bootstrap, mcnemar

scipy_stats = pytest.importorskip("scipy.stats")


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60))
def test_mcnemar_is_the_binomial_test_of_what_differs(pairs: list[tuple[bool, bool]]) -> None:
    first, second = zip(*pairs, strict=True)
    only_first = sum(one and not other for one, other in pairs)
    only_second = sum(other and not one for one, other in pairs)
    differing = only_first + only_second
    expected = scipy_stats.binomtest(only_first, differing).pvalue if differing else 1.0
    assert mcnemar(first, second) == pytest.approx(expected)


def test_an_interval_is_as_wide_as_the_clusters_make_it() -> None:
    """A hundred terms that are really ten."""
    random = Random(0)
    means = [random.gauss(0.1, 1.0) for _ in range(10)]
    terms = [mean for mean in means for _ in range(10)]
    low, high = bootstrap(terms, [index // 10 for index in range(100)], seed=0)
    alone_low, alone_high = bootstrap(terms, range(100), seed=0)
    assert low < sum(terms) / 100 < high
    assert high - low > 2 * (alone_high - alone_low)
    assert bootstrap(terms, range(100), seed=0) == (alone_low, alone_high)
