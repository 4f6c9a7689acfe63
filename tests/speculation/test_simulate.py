"""Collections on a simulated server: the same episodes in every setting, the same result every time."""

from dataclasses import replace

import pytest

from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.speculation.profiles import PROFILES, Lognormal, Mixture, get_profile
from obsspec_gym.speculation.simulate import Setting, simulate

SMALL = replace(get_profile("paper-8b"), turns=Lognormal(4, 0.3, 6), rollouts=4, group=2)
SEQUENTIAL = Setting(depth=0)
RIGHT = Setting(match_rate=1.0, prediction_seconds=0.0)


def test_the_same_seed_gives_the_same_and_another_one_other_episodes() -> None:
    first, again, other = (simulate(SMALL, SEQUENTIAL, rollouts=4, seed=seed) for seed in (0, 0, 1))
    assert first == again
    assert first.measures.tool_seconds != other.measures.tool_seconds


def test_every_setting_has_the_same_episodes() -> None:
    wrong = Setting(match_rate=0.0, alternative=0.0, prediction_seconds=0.1, depth=2, breadth=2)
    results = [simulate(SMALL, setting, rollouts=4) for setting in (SEQUENTIAL, RIGHT, wrong)]
    assert len({(result.measures.turns, round(result.measures.tool_seconds, 6)) for result in results}) == 1
    assert [result.measures.match_rate for result in results] == [None, 1.0, 0.0]
    assert results[2].measures.hit_rate == 0.0
    assert results[2].measures.discarded_tokens > 0


def test_what_is_foreseen_at_once_hides_generation_on_a_server_that_has_room() -> None:
    alone = [simulate(SMALL, setting, rollouts=2, envs=1).measures for setting in (SEQUENTIAL, RIGHT)]
    assert alone[1].agent_latency < alone[0].agent_latency
    assert alone[1].hit_rate == 1.0
    assert alone[1].pipeline_efficiency == pytest.approx(1.0)


def test_profiles_draw_what_they_say() -> None:
    assert Lognormal(3.0).at(0.9) == 3.0
    assert Lognormal(3.0, 1.0, cap=4.0).at(0.99) == 4.0
    assert Lognormal(3.0, 1.0).at(0.5) == pytest.approx(3.0)
    mixture = Mixture(((0.25, Lognormal(1.0)), (0.75, Lognormal(2.0))))
    drawn = [mixture.draw("test", i) for i in range(400)]
    assert set(drawn) == {1.0, 2.0}
    assert 60 < drawn.count(1.0) < 140
    assert all(hasattr(profile, name) for profile in PROFILES.values() for name in profile.assumed)


def test_what_is_no_setting_is_refused() -> None:
    for wrong in ({"match_rate": 1.5}, {"alternative": -0.1}, {"prediction_seconds": -1.0}, {"depth": -1}):
        with pytest.raises(InvalidArgumentError):
            Setting(**wrong)
    with pytest.raises(InvalidArgumentError, match="rollouts and envs must be at least 1"):
        simulate(SMALL, SEQUENTIAL, rollouts=0)
    with pytest.raises(InvalidArgumentError, match="unknown profile 'nonsense'; there are paper-8b, paper-32b"):
        get_profile("nonsense")
