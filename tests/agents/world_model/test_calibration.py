"""Calibration: monotone, within [0, 1], converging; each prediction verified once it is known what happened."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from obsspec_gym.agents.history import History
from obsspec_gym.agents.world_model.calibration import (
    Calibration,
    Calibrator,
    outcome_key,
    pool_adjacent_violators,
)
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.types import EpisodeId, Outcome, Prediction, Transition

confidences = st.floats(0, 1)
history_of_updates = st.lists(st.tuples(confidences, st.booleans()), max_size=60)


@settings(deadline=None)
@given(updates=history_of_updates, asked=st.lists(confidences, min_size=2, max_size=10))
def test_monotone_and_a_probability_whatever_it_learnt(updates: list[tuple[float, bool]], asked: list[float]) -> None:
    calibrator = Calibrator()
    for confidence, matched in updates:
        calibrator.update(confidence, matched)
    probabilities = [calibrator(confidence) for confidence in sorted(asked)]
    assert all(0 <= p <= 1 for p in probabilities)
    assert probabilities == sorted(probabilities)


@settings(deadline=None, max_examples=20)
@given(confidence=confidences, truth=st.floats(0, 1), seed=st.integers(0, 1000))
def test_converges_to_the_frequency_of_matches(confidence: float, truth: float, seed: int) -> None:
    draw = random.Random(seed)
    calibrator = Calibrator(window=1e9)
    trials = 3000
    for _ in range(trials):
        calibrator.update(confidence, draw.random() < truth)
    assert abs(calibrator(confidence) - truth) < 5 * 0.5 / trials**0.5  # five standard deviations at most


def test_learns_a_monotone_curve() -> None:
    draw = random.Random(0)
    calibrator = Calibrator(window=1e9)
    for _ in range(20_000):
        confidence = draw.random()
        calibrator.update(confidence, draw.random() < confidence**2)
    for confidence in (0.15, 0.45, 0.75, 0.85):
        assert calibrator(confidence) == pytest.approx(confidence**2, abs=0.05)


def test_an_unused_calibrator_believes_what_it_is_told() -> None:
    calibrator = Calibrator()
    for confidence in (0.01, 0.25, 0.5, 0.87, 0.951, 0.97, 0.9995):
        assert calibrator(confidence) == pytest.approx(confidence, abs=1e-12)
    assert 0 < calibrator(0.0) < 0.02
    assert 0.999 < calibrator(1.0) < 1, "1 is what a source says that cannot tell"


def test_confidences_of_a_bin_are_told_apart_until_it_knows_better() -> None:
    calibrator = Calibrator()
    differences = []
    for tried in range(200):
        differences.append(calibrator(0.89) - calibrator(0.86))
        calibrator.update(0.875, matched=tried % 8 != 0)
    assert differences[0] == pytest.approx(0.03)
    assert differences[4] > 0.005
    assert 0 <= differences[-1] < 0.001


def test_forgets_what_is_long_past() -> None:
    calibrator = Calibrator(window=50)
    for _ in range(1000):
        calibrator.update(0.9, False)
    for _ in range(300):
        calibrator.update(0.9, True)
    assert calibrator(0.9) > 0.9


@given(values=st.lists(st.tuples(st.floats(0, 1), st.floats(0.1, 10)), max_size=20))
def test_pooling_keeps_the_weighted_mean_and_sorted_values_as_they_are(values: list[tuple[float, float]]) -> None:
    means, weights = [value for value, _ in values], [weight for _, weight in values]
    pooled = pool_adjacent_violators(means, weights)
    assert all(left <= right + 1e-12 for left, right in pairwise(pooled))
    total = sum(m * w for m, w in values)
    assert sum(p * w for p, w in zip(pooled, weights, strict=True)) == pytest.approx(total)
    assert pool_adjacent_violators(sorted(means), weights) == sorted(means)


def test_a_checkpoint_brings_back_what_was_learnt() -> None:
    calibration = Calibration()
    for _ in range(20):
        calibration["a"].update(0.9, False)
    restored = Calibration()
    restored.load_state_dict(calibration.state_dict())
    assert restored["a"](0.9) == calibration["a"](0.9) < 0.5
    assert restored["b"](0.9) > 0.5


@pytest.mark.parametrize("confidence", [-0.1, 1.1, float("nan")])
def test_a_confidence_is_a_probability(confidence: float) -> None:
    with pytest.raises(InvalidArgumentError, match=r"in \[0, 1\]"):
        Calibrator()(confidence)
    with pytest.raises(InvalidArgumentError, match=r"in \[0, 1\]"):
        Calibrator().update(confidence, True)


def test_predictions_are_verified_by_their_own_transition_only() -> None:
    calibration = Calibration()
    start = History.start(EpisodeId("t"), "do")
    for _ in range(30):
        calibration.apply(start, "ls", [Prediction("a", False, 0.9, "x"), Prediction("b", False, 0.05, "x")])
        calibration.observe(Transition(start.act("ls"), Outcome("b"), 0.1))
        calibration.observe(Transition(start.act("pwd"), Outcome("a"), 0.1))
    assert calibration["x"](0.9) < 0.6
    right, wrong = Calibration(), Calibration()
    for _ in range(30):
        right.apply(start, "ls", [Prediction("a", False, 0.5, "x")])
        right.observe(Transition(start.act("ls"), Outcome("a"), 0.1))
        wrong.apply(start, "ls", [Prediction("a", True, 0.5, "x")])
        wrong.observe(Transition(start.act("ls"), Outcome("a"), 0.1))
    assert right["x"](0.5) > 0.8
    assert wrong["x"](0.5) < 0.2, "whether the episode ends belongs to the outcome"


def test_calibrated_predictions_are_ordered_and_sum_to_at_most_one() -> None:
    calibration = Calibration()
    start = History.start(EpisodeId("t"), "do")
    raw = [Prediction(text, False, p, "x") for text, p in [("a", 0.3), ("b", 0.8), ("c", 0.82), ("d", 0.6)]]
    predictions = calibration.apply(start, "ls", raw)
    assert [p.observation for p in predictions] == ["c", "b", "d", "a"]
    probabilities = [p.probability for p in predictions]
    assert probabilities == sorted(probabilities, reverse=True)
    assert sum(probabilities) <= 1 + 1e-9


def test_only_so_many_predictions_wait_for_verification() -> None:
    calibration = Calibration(capacity=2)
    start = History.start(EpisodeId("t"), "do")
    for i in range(3):
        calibration.apply(start, f"ls {i}", [Prediction("a", False, 0.5, "x")])
    before = calibration["x"](0.5)
    calibration.observe(Transition(start.act("ls 0"), Outcome("a"), 0.1))
    assert calibration["x"](0.5) == before
    calibration.observe(Transition(start.act("ls 2"), Outcome("a"), 0.1))
    assert calibration["x"](0.5) > before


def test_an_outcome_s_key_is_all_that_a_policy_can_tell_apart() -> None:
    outcomes = [Outcome("a"), Outcome("a", True), Outcome("a", False, 1), Outcome("b")]
    assert len({outcome_key(outcome) for outcome in outcomes}) == 4
    assert outcome_key(Outcome("a")) == outcome_key(Prediction("a", False, 0.3, "x"))
