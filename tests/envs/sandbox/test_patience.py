"""How long parts of a call may wait, however many there are and however long each takes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from obsspec_gym.envs.sandbox import patience
from obsspec_gym.envs.sandbox.patience import Patience


class Clock:
    """A clock that goes on when somebody waits."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@given(st.floats(0.1, 100.0), st.lists(st.tuples(st.floats(0.01, 200.0), st.floats(0.0, 1.0)), max_size=30))
def test_all_waits_of_a_call_together_end_less_than_two_seconds_after_its_timeout(
    timeout: float, waits: list[tuple[float, float]]
) -> None:
    """Of which only the last is in vain: after one that nobody answered, nothing more is asked."""
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock()
        patch.setattr(patience, "time", clock)
        bounded = Patience()
        bounded.begin(timeout)
        end = clock.now + timeout + 2.0
        for most, share in waits:
            if clock.now > end - 0.3:  # everything is answered, and time is up all the same
                return
            seconds = bounded.seconds(most)
            assert seconds <= most or seconds == pytest.approx(0.05)
            assert clock.now + seconds < end - 0.2
            clock.now += share * seconds


def test_between_calls_and_after_a_good_one_nothing_is_bounded() -> None:
    unbounded = Patience()
    assert (unbounded.seconds(77.0), unbounded.left()) == (77.0, math.inf)
    unbounded.begin(1.0)
    assert unbounded.seconds(77.0) <= 2.7
    unbounded.end()
    assert unbounded.seconds(77.0) == 77.0


def test_a_part_with_a_timeout_of_its_own_extends_the_call() -> None:
    call = Patience()
    call.begin(10.0)
    call.extend(1.0)
    assert 9.0 < call.left() <= 10.0
    call.extend(20.0)
    assert 19.0 < call.left() <= 20.0
