"""What is learnt of how long steps take, and what follows for speculative requests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

from obsspec_gym.agents.engine.embedded.step_times import CHANCE, StepTimes


def taught(base: float, slope: float, rows: list[int]) -> StepTimes:
    times = StepTimes()
    for count in rows:
        times.add(count, base + slope * count)
    return times


@given(
    base=st.floats(0.0, 0.1),
    slope=st.floats(0.0, 0.01),
    rows=st.lists(st.integers(1, 64), min_size=16, max_size=40).filter(lambda rows: len(set(rows)) > 1),
    committed=st.integers(1, 32),
    beside=st.integers(0, 32),
)
def test_a_line_is_found_and_decides_what_is_worth_it(
    base: float, slope: float, rows: list[int], committed: int, beside: int
) -> None:
    times = taught(base, slope, rows)
    assert times.slope == pytest.approx(slope, rel=0.2, abs=1e-9)
    lost, hidden = committed * slope, CHANCE * (base + slope * (committed + beside + 1))
    if lost < 0.8 * hidden:
        assert times.worth(committed + beside, committed)
    if lost > 1.2 * hidden + 1e-9:
        assert not times.worth(committed + beside, committed)


def test_nothing_is_said_before_anything_is_known() -> None:
    times = taught(0.0, 1.0, [1, 9] * 7)
    assert times.slope == 0.0
    assert times.worth(100, 100)
    times.add(1, 1.0)
    times.add(9, 9.0)
    assert not times.worth(100, 100)


def test_steps_of_one_size_tell_nothing_of_others() -> None:
    times = StepTimes()
    for step in range(200):
        times.add(8, 0.01 + 0.001 * (step % 7))
    assert times.slope == 0.0
    assert times.seconds(100) == pytest.approx(0.013, abs=0.001)


def test_what_held_up_one_step_is_not_believed() -> None:
    calm, disturbed = (taught(0.01, 0.001, [1, 9] * 64) for _ in range(2))
    disturbed.add(9, 60.0)
    assert disturbed.slope < 1.1 * calm.slope


def test_it_forgets() -> None:
    times = taught(0.0, 0.01, [1, 9] * 200)
    for _ in range(1000):
        times.add(1, 0.05)
        times.add(9, 0.05)
    assert times.slope == pytest.approx(0.0, abs=1e-4)
