"""Gymnasium's vector wrappers around ours, and ours around them: same numbers as without us."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers.vector import DictInfoToList, RecordEpisodeStatistics, TransformAction, TransformObservation

from obsspec_gym import FixedSelector, History, InvalidArgumentError, ObsSpecVectorEnv
from obsspec_gym.speculation.wrapper import ActionHandle
from tests.conformance.worlds import MODES, Gate, Twin, choose, counting, offset_of, plain

KINDS = ["sync", "thread"]


def wrapped(kind: str, mode: AutoresetMode = AutoresetMode.NEXT_STEP) -> ObsSpecVectorEnv:
    gate = Gate(choose, offset_of)
    bare = counting(kind, mode, (3, 4), gate=gate)
    return ObsSpecVectorEnv(bare, gate.policy, Twin(length=4, wrong=3), FixedSelector(1, 1))


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize("kind", KINDS)
def test_episode_statistics(kind: str, mode: AutoresetMode) -> None:
    def play(envs: VectorEnv[Any, Any, Any], actions_of: Any) -> list[Any]:
        recorded = RecordEpisodeStatistics(envs)
        recorded.reset(seed=1)
        log = []
        for step in range(8):
            *_, terminated, truncated, infos = recorded.step(actions_of(step))
            over = terminated | truncated
            if over.any():
                log.append((infos["episode"]["r"].tolist(), infos["episode"]["l"].tolist(), infos["_episode"].tolist()))
            if over.any() and mode is AutoresetMode.DISABLED:
                recorded.reset(options={"reset_mask": over})
        recorded.close()
        return log

    ours = wrapped(kind, mode)
    actions = []

    def act(step: int) -> Any:
        actions.append(ours.act())
        return actions[-1]

    log = play(ours, act)
    # Gymnasium's own vectors take the mask out of the caller's dictionary, and the recorder then forgets everybody's.
    bare = "thread" if mode is AutoresetMode.DISABLED else kind
    assert log == play(counting(bare, mode, (3, 4)), lambda step: actions[step])
    assert len(log) >= 2


@pytest.mark.parametrize("kind", KINDS)
def test_infos_as_a_list_have_the_handles_of_those_that_came_as_predicted(kind: str) -> None:
    ours = wrapped(kind)
    listed = DictInfoToList(ours)
    seen = set()
    _, infos = listed.reset(seed=1)
    assert [set(info) for info in infos] == [{"action_mask", "offset"}] * 2
    for _ in range(6):
        actions = ours.act()
        *_, infos = listed.step(actions)
        expected = ours.act()
        for info, action in zip(infos, expected, strict=True):
            handle = info.get("next_action")
            seen.add(handle is not None)
            if handle is not None:
                assert isinstance(handle, ActionHandle)
                assert handle.result() == action
    assert seen == {True, False}
    listed.close()
    assert ours.closed


@pytest.mark.parametrize("kind", KINDS)
def test_transformed_observations_and_actions_around_it(kind: str) -> None:
    """What is around it changes what its user sees; the policy goes on to see what the environment says."""
    ours, bare = wrapped(kind), counting(kind, AutoresetMode.NEXT_STEP, (3, 4))
    space = Box(-np.inf, np.inf, (2,), np.float32)
    around = TransformAction(
        TransformObservation(ours, lambda seen: -seen["place"], single_observation_space=space),
        lambda actions: 2 - actions,
    )
    first, _ = around.reset(seed=1)
    expected, _ = bare.reset(seed=1)
    assert np.array_equal(first, -expected["place"])
    for _ in range(5):
        actions = ours.act()
        returned = around.step(2 - actions)
        expected, rewards, *_ = bare.step(actions)
        assert np.array_equal(returned[0], -expected["place"])
        assert np.array_equal(returned[1], rewards)
    around.close()
    bare.close()


def test_transformed_observations_inside_are_what_the_policy_sees() -> None:
    seen = []

    def watch(history: History, seed: int) -> int:
        seen.append(plain(history.value))
        return 0

    inside = TransformObservation(
        counting("sync", AutoresetMode.NEXT_STEP),
        lambda observations: observations["place"] * 2,
        single_observation_space=Box(-np.inf, np.inf, (2,), np.float32),
    )
    envs = ObsSpecVectorEnv(inside, watch)
    observations, _ = envs.reset(seed=1)
    envs.act()
    envs.close()
    assert seen == [plain(row) for row in observations]


def test_a_list_of_infos_inside_is_refused_with_what_to_do() -> None:
    envs = ObsSpecVectorEnv(DictInfoToList(counting("sync", AutoresetMode.NEXT_STEP)), choose)
    with pytest.raises(InvalidArgumentError, match="DictInfoToList"):
        envs.reset(seed=1)
    envs.close()


def test_other_actions_than_those_it_chose_are_played_and_what_follows_is_the_same() -> None:
    """Somebody else's actions in between: the policy goes on from what really happened."""

    def play(world_model: Any) -> list[Any]:
        gate = Gate(choose, offset_of)
        bare = counting("sync", AutoresetMode.NEXT_STEP, (6, 6), **({"gate": gate} if world_model else {}))
        envs = ObsSpecVectorEnv(bare, gate.policy, world_model)
        log = [plain(envs.reset(seed=3))]
        for step in range(5):
            actions = envs.act()
            taken = (actions + 1) % 3 if step % 2 else actions
            log.append(plain((actions, taken, envs.step(taken))))
        envs.close()
        return log

    assert play(Twin(length=6)) == play(None)
