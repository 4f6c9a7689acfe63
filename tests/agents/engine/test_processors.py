"""How busy processors are: of a clock and figures of the test's own, and of this machine."""

import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from obsspec_gym.agents.engine.embedded.processors import Did, Processors


def after(busy: float, *, count: int = 1, seconds: float = 10.0, every: float = 0.5) -> float:
    """What is said of processors that were so busy for so long."""
    now = 0.0
    processors = Processors(count, lambda: Did(busy * now, now), lambda: now)
    said = processors.contended
    while now < seconds:
        now += every
        said = processors.contended
    return said


@given(st.floats(0, 1), st.integers(1, 64))
def test_none_is_free_where_all_are_busy(busy: float, count: int) -> None:
    assert after(busy, count=count) == pytest.approx(busy**count, abs=0.01)


def test_the_last_second_counts_most() -> None:
    assert after(1.0, seconds=0.5) == pytest.approx(0.39, abs=0.01)
    assert after(1.0, seconds=0.1, every=0.1) == 0.0  # nothing is looked at so soon


def test_where_nothing_can_be_known_nothing_is_said() -> None:
    now = 0.0
    processors = Processors(2, lambda: None, lambda: now)
    now = 5.0
    assert processors.contended == 0.0


@pytest.mark.skipif(not os.path.exists("/proc/stat"), reason="uses what Linux has")
@pytest.mark.skipif(os.nice(0) > 0, reason="what is niced does not count")
def test_a_machine_that_computes_is_busy() -> None:
    """Whatever else this machine does: what this process computes is seen."""
    processors = Processors(1)
    deadline = time.monotonic() + 1.5
    while time.monotonic() < deadline:
        sum(range(1000))
        said = processors.contended
    assert said > 0.7 / len(os.sched_getaffinity(0)) * (1 - 0.3)
