"""Environments whose every step is known beforehand, and the same of them in each kind of vector environment.

Spawned processes import this module: nothing in it may depend on a test's own scope.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Hashable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from obsspec_gym import History, ObsSpecVectorEnv, Prediction, TerminalVectorEnv, ThreadVectorEnv
from obsspec_gym.seeding import derive_seed

MODES = list(AutoresetMode)


class Gate:
    """Lets an environment answer only once the policy is at work on its answer: so a test knows what is foreseen."""

    def __init__(self, policy: Callable[[History, int], Any], name: Callable[[History], Hashable]) -> None:
        self._policy = policy
        self._name = name
        self._at_work: set[Hashable] = set()
        self._changed = threading.Condition()

    def policy(self, history: History, seed: int) -> Any:
        """The policy, which is seen working."""
        with self._changed:
            self._at_work.add((self._name(history), history.turn))
            self._changed.notify_all()
        return self._policy(history, seed)

    def wait(self, name: Hashable, turn: int) -> None:
        """Until the policy has begun turn ``turn`` of the episode of that name."""
        with self._changed:
            self._changed.wait_for(lambda: (name, turn) in self._at_work, timeout=20)


class Counting(gym.Env[Any, Any]):
    """Counts its steps and ends after ``length`` of them; everything it says follows from seed, episode and actions.

    Its observation holds arrays, a dictionary in a dictionary, a tuple, and numbers of all kinds; a mask in ``info``
    says which of the three actions are allowed, and one that is not allowed costs a reward.
    """

    observation_space = spaces.Dict(
        {
            "count": spaces.Discrete(100),
            "place": spaces.Box(-1e6, 1e6, (2,), np.float32),
            "inner": spaces.Dict({"flags": spaces.MultiBinary(3), "picture": spaces.Box(0, 255, (2, 2), np.uint8)}),
            "pair": spaces.Tuple((spaces.MultiDiscrete([4, 5]), spaces.Box(-np.inf, np.inf, (), np.float64))),
        }
    )
    action_space = spaces.Discrete(3)

    def __init__(self, length: int = 3, pause: float = 0.0, gate: Gate | None = None) -> None:
        self.length = length
        self._pause = pause
        self._gate = gate
        self.mark = 0
        self._count = 0
        self._total = 0.0
        self._offset = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._offset = int(self.np_random.integers(1000))
        self._count, self._total = 0, 0.0
        return self._see(), self._say()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        allowed = self._say()["action_mask"][int(action)]
        self._count += 1
        self._total += 0.1 * (int(action) + 1)
        ends = self._count >= self.length
        cut = ends and self._offset % 2 == 1
        time.sleep(self._pause)
        if self._gate is not None and not ends:
            self._gate.wait(self._offset, self._count)
        return self._see(), 1.0 if allowed else -1.0, ends and not cut, cut, self._say()

    def _see(self) -> dict[str, Any]:
        return observation(self._offset, self._count, self._total)

    def _say(self) -> dict[str, Any]:
        return {"action_mask": mask(self._offset, self._count), "offset": self._offset}


def observation(offset: int, count: int, total: float) -> dict[str, Any]:
    """What the environment shows: of its offset, its count, and the sum of its actions."""
    return {
        "count": count,
        "place": np.array([offset + total, -total / 3], dtype=np.float32),
        "inner": {
            "flags": np.array([count % 2, offset % 2, 1], dtype=np.int8),
            "picture": np.full((2, 2), (offset + count) % 256, dtype=np.uint8),
        },
        "pair": (np.array([count % 4, offset % 5]), np.float64(np.nan if count == 1 else total / 7)),
    }


def mask(offset: int, count: int) -> np.ndarray[Any, Any]:
    """Which actions are allowed: never none."""
    return np.array([1, (offset + count) % 2, (offset + count) % 3 > 0], dtype=np.int8)


def choose(history: History, seed: int) -> int:
    """A policy that depends on every bit of what it sees, its mask included where it has one."""
    seen = history.value
    place = derive_seed(
        "choose", seed, seen["place"].tobytes().hex(), seen["pair"][0].tobytes().hex(), int(seen["count"])
    )
    allowed = np.ones(3) if history.visible is None else history.visible["action_mask"]
    return int(np.flatnonzero(allowed)[place % int(allowed.sum())])


def offset_of(history: History) -> int:
    """What an episode of a counting environment goes by."""
    return int(history.first_observation["place"][0])


class Twin:
    """A world model that knows the environment: right, but for every ``wrong``-th turn."""

    def __init__(self, length: int = 3, wrong: int = 4, visible: bool = False, wrong_mask: bool = False) -> None:
        self.length, self.wrong, self.visible, self.wrong_mask = length, wrong, visible, wrong_mask

    def __call__(self, history: History, action: Any) -> Prediction:
        offset = offset_of(history)
        actions = [*(turn.action for turn in history.turns), action]
        total = 0.0
        for each in actions:
            total += 0.1 * (int(each) + 1)
        count = len(actions)
        lie = derive_seed("lie", offset, count) % self.wrong == 0
        allowed = mask(offset, count)
        return Prediction(
            observation(offset, count, total + lie),
            ends=count >= self.length,
            visible={"action_mask": 1 - allowed if self.wrong_mask else allowed} if self.visible else None,
        )


def vectors() -> dict[str, Callable[..., VectorEnv[Any, Any, Any]]]:
    """The kinds of vector environments that are wrapped: called with a list of factories and an autoreset mode."""
    return {
        "sync": SyncVectorEnv,
        "async": functools.partial(AsyncVectorEnv, shared_memory=False, context="spawn"),
        "thread": ThreadVectorEnv,
    }


def counting(
    kind: str, mode: AutoresetMode, lengths: tuple[int, ...] = (2, 3), **options: Any
) -> VectorEnv[Any, Any, Any]:
    """Counting environments, one for each length."""
    return vectors()[kind]([functools.partial(Counting, length, **options) for length in lengths], autoreset_mode=mode)


def terminals(mode: AutoresetMode, num_envs: int = 2) -> TerminalVectorEnv:
    """Terminals that need no sandbox, with episodes of two commands."""
    return TerminalVectorEnv(num_envs, suite="basics", sandbox="local", max_episode_steps=2, autoreset_mode=mode)


def say(history: History, seed: int) -> str:
    """A policy for terminals that depends on all it has seen."""
    return f"sleep 0.2; echo {derive_seed('say', seed, str(history.value)) % 1000}"


def echo(history: History, action: Any) -> Prediction:
    """A world model that knows what ``echo`` prints, and that two commands are an episode."""
    return Prediction(f"{str(action).split()[-1]}\n[exit 0] ~", ends=history.turn + 1 >= 2)


def step_through(envs: ObsSpecVectorEnv, steps: int, seed: Any = 5, *, by_hand: bool = False) -> list[Any]:
    """Everything a run returns, as plain values; where autoreset is disabled, resets are made ``by_hand``."""
    observations, infos = envs.reset(seed=seed)
    log: list[Any] = [plain((observations, infos))]
    for _ in range(steps):
        actions = envs.act()
        observations, rewards, terminated, truncated, infos = envs.step(actions)
        log.append(plain((actions, observations, rewards, terminated, truncated, infos)))
        over = terminated | truncated
        if by_hand and over.any():
            log.append(plain(envs.reset(options={"reset_mask": over})))
    return log


def plain(value: Any) -> Any:
    """A copy that ``==`` compares exactly: dtype, shape and bits of arrays; without the handles on next actions."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items() if not key.endswith("next_action")}
    if isinstance(value, tuple | list):
        return [type(value).__name__, *map(plain, value)]
    if isinstance(value, np.ndarray) and value.dtype == object:
        return ["objects", *map(plain, value.ravel())]
    if isinstance(value, np.ndarray | np.generic):
        return [type(value).__name__, str(value.dtype), value.shape, value.tobytes()]
    return value
