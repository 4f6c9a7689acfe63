"""Every kind of space, as observations and as actions: predictions in any equal form match, trajectories are equal."""

from __future__ import annotations

import copy
import functools
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from obsspec_gym import (
    FixedSelector,
    History,
    InvalidArgumentError,
    ObsSpecEnv,
    ObsSpecVectorEnv,
    Off,
    Prediction,
    ThreadVectorEnv,
)
from obsspec_gym.agents.history import same_observation
from obsspec_gym.seeding import derive_seed
from obsspec_gym.speculation.conform import conform
from obsspec_gym.speculation.record import TurnRecord
from tests.conformance.worlds import Gate, plain

SPACES: dict[str, gym.Space[Any]] = {
    "discrete": spaces.Discrete(5, start=-2),
    "box32": spaces.Box(-1, 1, (2, 3), np.float32),
    "box64": spaces.Box(-np.inf, np.inf, (), np.float64),
    "bytes": spaces.Box(0, 255, (4,), np.uint8),
    "multidiscrete": spaces.MultiDiscrete([3, 4]),
    "multibinary": spaces.MultiBinary([2, 2]),
    "tuple": spaces.Tuple((spaces.Discrete(3), spaces.Box(0, 1, (1,), np.float32))),
    "dict": spaces.Dict({"b": spaces.Tuple((spaces.Discrete(2),)), "a": spaces.Dict({"x": spaces.MultiBinary(2)})}),
    "text": spaces.Text(8),
    "sequence": spaces.Sequence(spaces.Discrete(4)),
    "mixed": spaces.Dict({"words": spaces.Text(4), "at": spaces.Box(0, 9, (2,), np.int64)}),
    "graph": spaces.Graph(spaces.Box(0, 1, (2,), np.float32), spaces.Discrete(3)),
}


def sample(space: gym.Space[Any], *names: int | str) -> Any:
    """A sample that its names determine."""
    own = copy.deepcopy(space)
    own.seed(derive_seed(*names) % 2**31)
    return own.sample()


def loosely(value: Any) -> Any:
    """The value as somebody would write it by hand: plain numbers and lists."""
    if isinstance(value, dict):
        return {key: loosely(item) for key, item in reversed(value.items())}
    if isinstance(value, spaces.GraphInstance):
        return copy.deepcopy(value)
    if isinstance(value, tuple):
        return [loosely(item) for item in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


class Sampling(gym.Env[Any, Any]):
    """Shows samples that seed, step and actions determine."""

    def __init__(self, space: gym.Space[Any], gate: Gate | None = None) -> None:
        self.observation_space = self.action_space = space
        self._past, self._name, self._turn = "", "", 0
        self._gate = gate

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._past, self._turn = str(self.np_random.integers(1000)), 0
        observation = sample(self.observation_space, self._past)
        self._name = str(plain(conform(self.observation_space, observation)))
        return observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._past += str(plain(conform(self.action_space, action)))
        self._turn += 1
        if self._gate is not None:
            self._gate.wait(self._name, self._turn)
        return sample(self.observation_space, self._past), 0.0, False, False, {}


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("vector", [SyncVectorEnv, ThreadVectorEnv])
def test_any_space_gives_the_same_trajectory_with_and_without_speculation(name: str, vector: Any) -> None:
    space = SPACES[name]

    def act(history: History, seed: int) -> Any:
        return loosely(sample(space, seed, str(plain(history.value))))

    def play(world_model: Any, selector: Any) -> list[Any]:
        gate = Gate(act, lambda history: str(plain(history.first_observation)))
        make = functools.partial(Sampling, space, gate if world_model else None)
        envs = ObsSpecVectorEnv(vector([make] * 2), gate.policy, world_model, selector, on_turn=turns.append)
        try:
            log = [plain(envs.reset(seed=2)[0])]
            for _ in range(5):
                actions = envs.act()
                log.append(plain((actions, envs.step(actions)[0])))
            return log
        finally:
            envs.close()

    def foretell(history: History, action: Any) -> Any:
        """What the environment is going to show, in plain numbers and lists."""
        starts = {str(plain(conform(space, sample(space, str(n))))): str(n) for n in known}
        past = starts[str(plain(history.first_observation))]
        actions = [*(turn.action for turn in history.turns), action]
        # A bare list would be a list of predictions.
        return Prediction(loosely(sample(space, past + "".join(str(plain(each)) for each in actions))))

    known = [int(gym.utils.seeding.np_random(seed)[0].integers(1000)) for seed in (2, 3)]
    turns: list[TurnRecord] = []
    speculative = play(foretell, FixedSelector(2, 1))
    predictions = [prediction.matched for turn in turns for prediction in turn.predictions]
    assert sum(predictions) >= 6
    assert all(predictions)
    assert any(turn.hit for turn in turns)
    turns.clear()
    assert speculative == play(None, Off())


@pytest.mark.parametrize("name", SPACES)
def test_a_sample_conforms_to_itself_and_is_copied(name: str) -> None:
    value = sample(SPACES[name], "one")
    found = conform(SPACES[name], value)
    assert same_observation(found, conform(SPACES[name], loosely(value)))
    if name != "box64":  # its samples are NumPy scalars, which no array is
        assert same_observation(found, value)
    if isinstance(value, np.ndarray):
        assert not np.shares_memory(found, value)


@given(
    st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=3)
    | st.none()
    | st.lists(st.integers(0, 3), max_size=3)
)
@settings(max_examples=100)
@pytest.mark.filterwarnings("ignore:.*Casting input x to numpy array")
def test_what_does_not_fit_stays_what_it_is(value: Any) -> None:
    for space in SPACES.values():
        found = conform(space, value)
        if found is value or same_observation(found, value):
            continue
        assert space.contains(found) or np.allclose(np.asarray(found, float), np.asarray(value, float), equal_nan=True)
        again = conform(space, found)
        assert same_observation(again, found), "a value in its space's form has it already"


def test_a_reused_buffer_cannot_change_a_history() -> None:
    """An environment may write every observation into the same memory, and a user into what was returned."""
    histories: list[History] = []

    class Reusing(gym.Env[Any, Any]):
        observation_space = spaces.Box(0, 100, (2,), np.float32)
        action_space = spaces.Discrete(2)
        buffer = np.zeros(2, np.float32)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            self.buffer[:] = 0
            return self.buffer, {}

        def step(self, action: Any) -> Any:
            self.buffer += 1
            return self.buffer, 0.0, False, False, {}

    def watch(history: History, seed: int) -> int:
        histories.append(history)
        return 0

    for envs in (
        ObsSpecVectorEnv(SyncVectorEnv([Reusing], copy=False), watch, lambda history, action: history.value + 1),
        ObsSpecEnv(Reusing(), watch, lambda history, action: history.value + 1),
    ):
        histories.clear()
        observation, _ = envs.reset()
        for _ in range(3):
            if isinstance(envs, ObsSpecVectorEnv):
                observation[...] = 77
            observation = envs.step(envs.act())[0]
        envs.act()
        envs.close()
        last = max(histories, key=lambda history: history.turn)
        assert [event.value.tolist() for event in last if not event.is_action] == [[n, n] for n in (0, 1, 2, 3)]


def test_a_policy_whose_actions_do_not_fit_is_told_so() -> None:
    envs = ObsSpecVectorEnv(SyncVectorEnv([lambda: Sampling(SPACES["box32"])]), lambda history, seed: "left")
    envs.reset(seed=0)
    with pytest.raises(
        InvalidArgumentError, match=r"the policy's actions must be of Box\(-1.0, 1.0, \(2, 3\), float32\)"
    ):
        envs.act()
    envs.close()
