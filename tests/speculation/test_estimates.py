"""What a selector learns: rates, durations, the cost of a step."""

from __future__ import annotations

import itertools
import statistics
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from obsspec_gym.speculation.estimates import KINDS, QUANTILES, DurationsByKind, Rates, StepCosts, mean_minimum

seconds = st.floats(1e-3, 1e3)


@given(st.lists(seconds, min_size=1, max_size=20), st.lists(seconds, min_size=1, max_size=20))
def test_mean_minimum_is_that_of_all_pairs(left: list[float], right: list[float]) -> None:
    expected = statistics.fmean(min(pair) for pair in itertools.product(left, right))
    assert mean_minimum(sorted(left), sorted(right)) == pytest.approx(expected)


def test_a_rate_goes_from_the_prior_to_what_is_seen_and_from_the_general_to_the_special() -> None:
    rates = Rates(weight=4.0)
    assert rates.of(["all", "ls"], prior=0.25) == 0.25
    for _ in range(400):
        rates.add(["all", "ls"], True)
        rates.add(["all", "date"], False)
    assert rates.of(["all"], prior=0.0) == pytest.approx(0.5, abs=0.01)
    assert rates.of(["all", "ls"], prior=0.0) > 0.98
    assert rates.of(["all", "date"], prior=1.0) < 0.02
    assert rates.of(["all", "unseen"], prior=0.0) == rates.of(["all"], prior=0.0)
    assert (rates.seen("ls"), rates.seen("unseen")) == (400, 0)


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), seconds), max_size=120))
def test_durations_are_ascending_quantiles_within_what_was_seen(added: list[tuple[str, float]]) -> None:
    durations = DurationsByKind(1.0, 1.0)
    for kind, value in added:
        durations.add(kind, value)
        assert len(durations.of(kind)) == QUANTILES
    for quantiles in (durations.of("a"), durations.of("unseen"), durations.all.quantiles()):
        assert len(quantiles) == QUANTILES
        assert list(quantiles) == sorted(quantiles)
    seen = [value for kind, value in added if kind == "a"]
    if len(seen) >= 8 * QUANTILES:
        assert min(seen) <= durations.of("a")[0] <= durations.of("a")[-1] <= max(seen)


def test_a_kind_that_is_known_is_told_apart_from_the_others() -> None:
    durations = DurationsByKind(1.0, 1.0)
    for _ in range(2 * QUANTILES):
        durations.add("slow", 30.0)
        durations.add("quick", 0.01)
    assert durations.of("slow") == (30.0,) * QUANTILES
    assert durations.of("quick") == (0.01,) * QUANTILES
    assert set(durations.of("unseen")) == {30.0, 0.01}


def test_step_costs_find_what_load_costs() -> None:
    random, costs = Random(0), StepCosts()
    for _ in range(800):
        tokens, running = random.randint(20, 400), random.randint(1, 64)
        costs.add(tokens, 0.05 + tokens * (0.01 + 0.0004 * running), running)
    cost = costs.cost()
    assert cost.step == pytest.approx(0.01, rel=0.1)
    assert cost.sequence == pytest.approx(0.0004, rel=0.1)
    assert cost.share(30, 31) == pytest.approx(30 * 0.0004 / (0.01 + 31 * 0.0004), rel=0.1)
    assert cost.share(0, 1) == 0.0


def test_step_costs_are_never_negative_and_sensible_before_anything_is_known() -> None:
    assert 0.1 < StepCosts().cost().share(10, 11) < 0.2  # a step is taken to double with every 64 sequences
    random, costs = Random(1), StepCosts()
    for _ in range(50):
        costs.add(random.randint(1, 10), random.uniform(0.001, 1.0), random.randint(1, 4))
        cost = costs.cost()
        assert cost.read >= 0
        assert cost.step > 0
        assert cost.sequence >= 0
    costs = StepCosts()
    costs.add(100, 1.0, 1)
    assert 0.2 < costs.cost().share(64, 65) < 0.8


def test_of_many_kinds_the_latest_are_known() -> None:
    rates, durations = Rates(), DurationsByKind(1.0, 1.0)
    for kind in range(40 * KINDS):
        rates.add(["all", kind], True)
        durations.add(kind, 5.0)
    assert rates.seen("all") == 40 * KINDS
    assert (rates.seen(0), rates.seen(40 * KINDS - 1)) == (0, 1)
    assert len(durations._kinds) == KINDS


def test_what_a_kind_takes_is_seen_to_change() -> None:
    durations = DurationsByKind(1.0, 1.0)
    for seconds in (1.0, 2.0):
        for _ in range(400):
            durations.add("make", seconds)
    assert durations.of("make") == durations.all.quantiles() == (2.0,) * QUANTILES
