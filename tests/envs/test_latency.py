import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from obsspec_gym.envs.latency import LatencyProfile
from obsspec_gym.errors import InvalidArgumentError


@given(st.text(max_size=20), st.integers(0, 99), st.integers(0, 99), st.integers(0, 2**63))
def test_delay_is_a_pure_positive_function_of_its_address(task_id, sample, turn, seed):
    delay = LatencyProfile(seed=seed).delay(task_id, sample, turn)
    assert 0 < delay < math.inf
    assert delay == LatencyProfile(seed=seed).delay(task_id, sample, turn)


def test_delays_are_lognormal_with_the_stated_median_and_sigma():
    profile = LatencyProfile(median=0.3, sigma=0.7)
    logs = [math.log(profile.delay("task", sample, turn)) for sample in range(100) for turn in range(50)]
    assert len(set(logs)) == len(logs)
    assert math.exp(statistics.median(logs)) == pytest.approx(0.3, rel=0.05)
    assert statistics.stdev(logs) == pytest.approx(0.7, rel=0.05)


def test_every_part_of_the_address_counts():
    profile = LatencyProfile()
    others = [LatencyProfile(seed=1).delay("t", 0, 0), profile.delay("u", 0, 0), profile.delay("t", 1, 0)]
    assert len({profile.delay("t", 0, 0), profile.delay("t", 0, 1), *others}) == 5


def test_parse():
    assert LatencyProfile.parse("none").delay("t", 0, 0) == 0.0
    assert LatencyProfile.parse("remote", seed=3) == LatencyProfile(seed=3)
    assert LatencyProfile.parse("lognormal:0.05,0") == LatencyProfile(0.05, 0.0)
    assert LatencyProfile.parse("lognormal:0.05,0").delay("t", 0, 0) == pytest.approx(0.05)


@pytest.mark.parametrize("text", ["", "fast", "lognormal", "lognormal:1", "lognormal:1,x", "lognormal:-1,1",
                                  "lognormal:1,-1", "lognormal:nan,1", "lognormal:1,inf", "normal:1,1"])  # fmt: skip
def test_parse_refuses(text):
    with pytest.raises(InvalidArgumentError):
        LatencyProfile.parse(text)
