"""Stepping a vector environment from the event loop: each environment on its own where it can be."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future as ThreadFuture
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import iterate

from obsspec_gym.types import Action, Observation


@dataclass(frozen=True, slots=True)
class Row:
    """One environment's part of a step.

    Attributes:
        observation: What the step returned.
        last_observation: The observation the action brought; another one only where SAME_STEP reset at once.
        terminated: Whether the episode ended.
        truncated: Whether it was cut off.
    """

    observation: Observation
    last_observation: Observation
    terminated: bool
    truncated: bool


class Stepper(Protocol):
    """Runs one step of a vector environment."""

    barrier: bool

    def start(self, actions: Any, each: Sequence[Action]) -> list[asyncio.Future[Row]]:
        """Sends the actions; a future for each environment's part."""
        ...

    def finish(self) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """The whole step, once every part is there."""
        ...

    def close(self) -> None:
        """Releases what the stepper owns."""
        ...


@runtime_checkable
class Collating(Protocol):
    """A vector environment that steps its environments separately and can put the results together."""

    num_envs: int

    def check(self, actions: Any) -> Any:
        """Raises for actions that are not legal, before any is sent."""
        ...

    def submit(self, env_id: int, action: Any) -> ThreadFuture[Any]:
        """Sends one environment's action."""
        ...

    def collate(self, results: Sequence[Any]) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """The batch made of one result for each environment."""
        ...


def stepper_for(env: VectorEnv[Any, Any, Any]) -> Stepper:
    """The stepper that suits a vector environment."""
    return IndependentStepper(env) if isinstance(env, Collating) else BarrierStepper(env)


class IndependentStepper:
    """Every environment's part arrives as soon as its own tool has answered."""

    barrier = False

    def __init__(self, env: Collating) -> None:
        self._env = env
        self._results: list[ThreadFuture[Any]] = []

    def start(self, actions: Any, each: Sequence[Action]) -> list[asyncio.Future[Row]]:
        """Checks all actions, then sends each."""
        self._env.check(each)
        self._results = [self._env.submit(index, action) for index, action in enumerate(each)]
        return [asyncio.ensure_future(self._part(result)) for result in self._results]

    async def _part(self, result: ThreadFuture[Any]) -> Row:
        observation, _, terminated, truncated, info = await asyncio.wrap_future(result)
        return Row(observation, info.get("final_obs", observation), terminated, truncated)

    def finish(self) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Puts the parts together."""
        return self._env.collate([result.result() for result in self._results])

    def close(self) -> None:
        """Owns nothing."""


class BarrierStepper:
    """All parts arrive at once, with the slowest environment. The step runs on a thread of its own."""

    barrier = True

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        self._env = env
        self._thread: ThreadPoolExecutor | None = None
        self._batch: tuple[Any, Any, Any, Any, dict[str, Any]] | None = None

    def start(self, actions: Any, each: Sequence[Action]) -> list[asyncio.Future[Row]]:
        """Sends the whole batch."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="obsspec-step")
        whole = asyncio.get_running_loop().run_in_executor(self._thread, self._env.step, actions)
        rows = asyncio.ensure_future(self._rows(whole))
        return [asyncio.ensure_future(_pick(rows, index)) for index in range(len(each))]

    async def _rows(self, whole: asyncio.Future[Any]) -> list[Row]:
        self._batch = observations, _, terminated, truncated, infos = await whole
        each = list(iterate(self._env.observation_space, observations))
        has_final = infos.get("_final_obs", [False] * len(each))
        return [
            Row(
                observation,
                infos["final_obs"][index] if has_final[index] else observation,
                bool(terminated[index]),
                bool(truncated[index]),
            )
            for index, observation in enumerate(each)
        ]

    def finish(self) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """What the step returned."""
        assert self._batch is not None
        return self._batch

    def close(self) -> None:
        """Ends the thread once the step under way, if any, returns."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
            self._thread = None


async def _pick(rows: asyncio.Future[list[Row]], index: int) -> Row:
    return (await asyncio.shield(rows))[index]
