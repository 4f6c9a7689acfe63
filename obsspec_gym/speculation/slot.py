"""Slots: where one environment runs, seen from the event loop.

A blocking environment gets a thread of its own; an environment that lives on the loop (simulated ones) needs none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Future as ThreadFuture
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import gymnasium as gym

from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.types import Action, EpisodeId, Observation

StepResult = tuple[Observation, float, bool, bool, dict[str, Any]]


@dataclass(frozen=True)
class Episode:
    """One episode that is to be run.

    Attributes:
        id: Task and sample; completions' seeds come from it.
        seed: Passed to ``reset``.
        options: Passed to ``reset``; for terminals ``{"task": Task or index, "sample": int}``.
    """

    id: EpisodeId
    seed: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class Slot(Protocol):
    """One environment on the event loop."""

    async def reset(self, episode: Episode) -> tuple[Observation, dict[str, Any]]:
        """Begins an episode."""
        ...

    async def step(self, action: Action) -> StepResult:
        """Executes an action; awaited to its end before the next one is sent."""
        ...

    def close(self) -> None:
        """Releases what the slot itself owns (its thread), not the environment."""
        ...


@runtime_checkable
class PerEnvironment(Protocol):
    """A vector environment whose environments run independently (``TerminalVectorEnv`` is one)."""

    num_envs: int

    def submit(self, env_id: int, action: Any) -> ThreadFuture[StepResult]:
        """Sends one environment's action."""
        ...

    def submit_reset(
        self, env_id: int, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> ThreadFuture[tuple[Observation, dict[str, Any]]]:
        """Resets one environment."""
        ...


class EnvSlot:
    """A ``gymnasium.Env`` in a thread of its own."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        self._env = env
        self._thread: ThreadPoolExecutor | None = None

    async def reset(self, episode: Episode) -> tuple[Observation, dict[str, Any]]:
        """Calls ``env.reset``."""
        observation, info = await self._call(lambda: self._env.reset(seed=episode.seed, options=dict(episode.options)))
        return observation, info

    async def step(self, action: Action) -> StepResult:
        """Calls ``env.step``."""
        observation, reward, terminated, truncated, info = await self._call(lambda: self._env.step(action))
        return observation, float(reward), bool(terminated), bool(truncated), info

    async def _call(self, function: Any) -> Any:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="obsspec-env")
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    def close(self) -> None:
        """Ends the thread once the call under way, if any, returns."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
            self._thread = None


class VectorSlot:
    """One environment of a vector environment that runs each on its own."""

    def __init__(self, envs: PerEnvironment, index: int) -> None:
        self._envs = envs
        self._index = index

    async def reset(self, episode: Episode) -> tuple[Observation, dict[str, Any]]:
        """Resets this environment."""
        options = dict(episode.options)
        return await asyncio.wrap_future(self._envs.submit_reset(self._index, seed=episode.seed, options=options))

    async def step(self, action: Action) -> StepResult:
        """Steps this environment."""
        return await asyncio.wrap_future(self._envs.submit(self._index, action))

    def close(self) -> None:
        """Owns nothing."""


def as_slots(environments: PerEnvironment | gym.Env[Any, Any] | Sequence[gym.Env[Any, Any] | Slot]) -> list[Slot]:
    """Slots over what a user has: a vector environment, one environment, or a list of environments.

    Raises:
        InvalidArgumentError: If it is none of these, or empty.
    """
    if isinstance(environments, PerEnvironment):
        return [VectorSlot(environments, index) for index in range(environments.num_envs)]
    if isinstance(environments, gym.Env):
        return [EnvSlot(environments)]
    if isinstance(environments, gym.vector.VectorEnv):
        raise InvalidArgumentError(
            f"free-running collection needs environments that step on their own, and {type(environments).__name__} "
            "steps all at once; pass a list of environments, a TerminalVectorEnv, or use ObsSpecVectorEnv"
        )
    if not isinstance(environments, Sequence) or not environments:
        raise InvalidArgumentError(f"environments must be a non-empty sequence, got {environments!r:.80}")
    return [EnvSlot(env) if isinstance(env, gym.Env) else env for env in environments]


def spaces_of(environments: Any) -> tuple[gym.Space[Any], gym.Space[Any]]:
    """The observation and action space of one of the environments that :func:`as_slots` takes.

    Slots of a user's own have none: what they give and take is left as it is.
    """
    if isinstance(environments, gym.vector.VectorEnv):
        return environments.single_observation_space, environments.single_action_space
    first = environments[0] if isinstance(environments, Sequence) else environments
    if isinstance(first, gym.Env):
        return first.observation_space, first.action_space
    return gym.Space(), gym.Space()
