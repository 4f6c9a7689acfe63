"""The vector wrapper over Gymnasium's own environments: same trajectories, handles, autoreset, release."""

from __future__ import annotations

import threading
import time
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from obsspec_gym.agents.history import History
from obsspec_gym.errors import ClosedError, InvalidArgumentError
from obsspec_gym.seeding import derive_seed
from obsspec_gym.speculation.record import TurnRecord
from obsspec_gym.speculation.selector import FixedSelector, Off
from obsspec_gym.speculation.wrapper import ActionHandle, ObsSpecVectorEnv
from obsspec_gym.types import Prediction


class Slow(gym.Wrapper[Any, Any, Any, Any]):
    """A FrozenLake whose steps take time."""

    def step(self, action: Any) -> Any:
        time.sleep(0.01)
        return super().step(action)


def frozen_lakes(count: int, mode: AutoresetMode = AutoresetMode.NEXT_STEP, slippery: bool = False) -> SyncVectorEnv:
    def make() -> gym.Env[Any, Any]:
        return Slow(gym.make("FrozenLake-v1", is_slippery=slippery, max_episode_steps=12))

    return SyncVectorEnv([make] * count, autoreset_mode=mode)


def wander(history: History, seed: int) -> int:
    return derive_seed("wander", seed, int(history.value)) % 4


LAKE = "SFFFFHFHFFFHHFFG"


def lake_model(history: History, action: Any) -> Prediction:
    """The lake without ice, in the head."""
    row, column = divmod(int(history.value), 4)
    row, column = [
        (row, max(column - 1, 0)),
        (min(row + 1, 3), column),
        (row, min(column + 1, 3)),
        (max(row - 1, 0), column),
    ][int(action)]
    square = row * 4 + column
    return Prediction(square, ends=LAKE[square] in "HG", source="map")


def play(envs: ObsSpecVectorEnv, steps: int, seed: int = 3) -> list[Any]:
    """Every observation, reward, end and action of a run."""
    observations, _ = envs.reset(seed=seed)
    log: list[Any] = [observations.tolist()]
    for _ in range(steps):
        actions = envs.act()
        observations, rewards, terminated, truncated, _ = envs.step(actions)
        log.append((actions.tolist(), observations.tolist(), rewards.tolist(), terminated.tolist(), truncated.tolist()))
    return log


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize("slippery", [False, True])
def test_a_wrapped_frozen_lake_plays_the_same_with_and_without_speculation(mode: AutoresetMode, slippery: bool) -> None:
    turns: list[TurnRecord] = []
    with_it = ObsSpecVectorEnv(
        frozen_lakes(3, mode, slippery), wander, lake_model, FixedSelector(2, 1), on_turn=turns.append
    )
    without = ObsSpecVectorEnv(frozen_lakes(3, mode, slippery), wander, None, Off())
    try:
        assert play(with_it, 40) == play(without, 40)
    finally:
        with_it.close()
        without.close()
    hits = sum(turn.hit for turn in turns)
    assert hits > 0
    assert any(turn.ends for turn in turns)
    if not slippery:
        assert all(p.matched for turn in turns for p in turn.predictions if turn.turn < 11)


def test_infos_carry_handles_exactly_where_the_observation_came_as_predicted() -> None:
    def half_right(history: History, action: Any) -> Prediction:
        truth = lake_model(history, action)
        return truth if int(action) % 2 else Prediction(15 - truth.observation)

    turns: list[TurnRecord] = []
    envs = ObsSpecVectorEnv(frozen_lakes(4), wander, half_right, FixedSelector(1, 1), on_turn=turns.append)
    try:
        _, infos = envs.reset(seed=0)
        assert not infos["_next_action"].any()
        seen = set()
        for _ in range(20):
            turns.clear()
            actions = envs.act()
            *_, infos = envs.step(actions)
            matched = {t.episode: any(p.matched for p in t.predictions) and not t.ends for t in turns}
            assert infos["_next_action"].sum() == sum(matched.values())
            for handle, there in zip(infos["next_action"], infos["_next_action"], strict=True):
                assert isinstance(handle, ActionHandle) == bool(there)
            expected = envs.act()
            for i in np.flatnonzero(infos["_next_action"]):
                assert infos["next_action"][i].result() == expected[i]
                assert infos["next_action"][i].done()
            seen |= set(infos["_next_action"].tolist())
        assert seen == {True, False}
    finally:
        envs.close()


def test_autoreset_disabled_resets_only_what_the_mask_names() -> None:
    envs = ObsSpecVectorEnv(frozen_lakes(2, AutoresetMode.DISABLED), wander, lake_model)
    try:
        envs.reset(seed=1)
        ends = np.zeros(2, dtype=bool)
        while not ends.any():
            _, _, terminated, truncated, _ = envs.step(envs.act())
            ends = terminated | truncated
        options = {"reset_mask": ends}
        observations, _ = envs.reset(options=options)
        assert options == {"reset_mask": ends}
        assert (observations[ends] == 0).all()
        envs.step(envs.act())
    finally:
        envs.close()


def test_other_actions_are_legal_and_what_nobody_takes_is_released() -> None:
    released: list[int] = []

    async def slow_policy(history: History, seed: int) -> int:
        import asyncio

        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            released.append(history.turn)
            raise
        return 0

    envs = ObsSpecVectorEnv(frozen_lakes(2), slow_policy, lake_model)
    try:
        envs.reset(seed=0)
        observations, *_ = envs.step(np.array([1, 2]))
        assert observations.tolist() == [4, 1]
        envs.step(np.array([2, 1]))
        envs.reset(seed=0)
    finally:
        envs.close()
    assert sorted(released)[:2] == [0, 0]
    assert len(released) >= 6


def test_bad_input_is_one_sentence_before_anything_is_sent() -> None:
    with pytest.raises(InvalidArgumentError, match="must be a gymnasium vector environment, got FrozenLakeEnv"):
        ObsSpecVectorEnv(gym.make("FrozenLake-v1").unwrapped, wander)  # type: ignore[arg-type]
    envs = ObsSpecVectorEnv(frozen_lakes(2), wander)
    with pytest.raises(gym.error.ResetNeeded):
        envs.act()
    envs.reset(seed=0)
    before = envs.act()
    with pytest.raises(InvalidArgumentError, match="actions must be 2, one for each environment, got 1"):
        envs.step(before[:1])
    with pytest.raises(InvalidArgumentError, match=r"mask must have shape \(2,\)"):
        envs.act(mask=[True])
    envs.step(before)
    envs.close()
    envs.close()
    with pytest.raises(ClosedError):
        envs.step(before)


def test_an_environment_that_raises_leaves_a_closable_wrapper() -> None:
    class Breaks(gym.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            raise OSError("broken pipe")

    envs = ObsSpecVectorEnv(SyncVectorEnv([lambda: Breaks(gym.make("FrozenLake-v1"))] * 2), wander, lake_model)
    envs.reset(seed=0)
    with pytest.raises(OSError, match="broken pipe"):
        envs.step(envs.act())
    envs.close()


def test_close_ends_every_thread() -> None:
    before = set(threading.enumerate())
    envs = ObsSpecVectorEnv(frozen_lakes(2), wander, lake_model)
    play(envs, 3)
    envs.close()
    left = [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("obsspec")]
    for thread in left:
        thread.join(5)
    assert not any(thread.is_alive() for thread in left)


def test_other_wrappers_and_attributes_reach_through() -> None:
    envs = ObsSpecVectorEnv(frozen_lakes(2), wander)
    try:
        assert [spec.id for spec in envs.get_attr("spec")] == ["FrozenLake-v1"] * 2
        envs.set_attr("mark", [1, 2])
        assert envs.call("get_wrapper_attr", "mark") == (1, 2)
    finally:
        envs.close()
