"""The wrapper of one environment: the same trajectories, Gymnasium's checker, release, errors."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from obsspec_gym import ClosedError, FixedSelector, InvalidArgumentError, ObsSpecEnv, Off
from obsspec_gym.speculation.record import TurnRecord
from tests.conformance.worlds import Counting, Gate, Twin, choose, offset_of, plain


def play(env: ObsSpecEnv, seeds: tuple[int | None, ...] = (0, None, 3, None)) -> list[Any]:
    """Everything that some episodes return."""
    log = []
    for seed in seeds:
        log.append(plain(env.reset(seed=seed)))
        ends = False
        while not ends:
            action = env.act()
            observation, reward, terminated, truncated, info = env.step(action)
            log.append(plain((action, observation, reward, terminated, truncated, info)))
            ends = terminated or truncated
    env.close()
    return log


@pytest.mark.parametrize("depth", [1, 3])
def test_it_plays_the_same_with_and_without_speculation(depth: int) -> None:
    turns: list[TurnRecord] = []
    seen = {"visible": ("action_mask",)}
    gate = Gate(choose, offset_of)
    model = Twin(length=5, wrong=3, visible=True)
    speculative = play(
        ObsSpecEnv(Counting(5, gate=gate), gate.policy, model, FixedSelector(depth, 1), on_turn=turns.append, **seen)
    )
    assert {turn.hit for turn in turns if turn.turn} == {True, False}
    again = play(ObsSpecEnv(Counting(5), choose, None, Off(), **seen))
    assert speculative == again


@pytest.mark.filterwarnings("ignore::UserWarning")  # the checker would rather have an environment without a wrapper
@pytest.mark.parametrize("name", ["CartPole-v1", "FrozenLake-v1"])
def test_gymnasiums_checker_has_nothing_against_it(name: str) -> None:
    env = ObsSpecEnv(gym.make(name), lambda history, seed: 0, lambda history, action: history.value)
    check_env(env, skip_render_check=True)
    again = env.spec.make() if env.spec is not None else None
    assert isinstance(again, ObsSpecEnv)
    again.close()
    env.close()


def test_the_next_action_has_a_handle_where_the_observation_came_as_predicted() -> None:
    gate = Gate(choose, offset_of)
    env = ObsSpecEnv(Counting(50, gate=gate), gate.policy, Twin(length=50, wrong=2), FixedSelector(1, 1))
    turns = []
    env.reset(seed=0)
    assert env.next_action is None
    for _ in range(20):
        env.step(env.act())
        handle = env.next_action
        turns.append(handle is not None)
        if handle is not None:
            assert handle.result() == env.act()
            assert handle.done()
    env.close()
    assert set(turns) == {True, False}


def test_the_environment_runs_on_its_callers_thread_and_is_given_what_was_given() -> None:
    class Watching(Counting):
        def step(self, action: Any) -> Any:
            given.append((threading.current_thread(), action))
            return super().step(action)

    given: list[Any] = []
    env = ObsSpecEnv(Watching(), choose, Twin())
    env.reset(seed=0)
    env.step(2)
    env.close()
    assert given == [(threading.current_thread(), 2)]
    assert type(given[0][1]) is int


def test_order_ends_and_errors() -> None:
    with pytest.raises(InvalidArgumentError, match="must be a gymnasium environment, got int"):
        ObsSpecEnv(3, choose)  # type: ignore[arg-type]
    env = ObsSpecEnv(Counting(1), choose, Twin(length=1))
    with pytest.raises(gym.error.ResetNeeded):
        env.act()
    env.reset(seed=0)
    env.step(env.act())
    with pytest.raises(gym.error.ResetNeeded):
        env.act()
    env.reset(seed=0)
    env.act()
    env.close()
    env.close()
    for use in (env.reset, env.act, lambda: env.step(0)):
        with pytest.raises(ClosedError):
            use()


def test_a_step_that_raises_ends_the_episode_and_cancels_what_was_foreseen() -> None:
    started, cancelled = [], []

    async def slow(history: Any, seed: int) -> int:
        started.append(history.turn)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(history.turn)
            raise
        return 0

    class Failing(Counting):
        def step(self, action: Any) -> Any:
            while 1 not in started:
                threading.Event().wait(0.001)
            raise KeyboardInterrupt

    env = ObsSpecEnv(Failing(), slow, Twin())
    env.reset(seed=0)
    with pytest.raises(KeyboardInterrupt):
        env.step(np.int64(1))
    with pytest.raises(gym.error.ResetNeeded):
        env.act()
    env.reset(seed=0)
    env.close()
    assert sorted(cancelled) == [0, 0, 1]
