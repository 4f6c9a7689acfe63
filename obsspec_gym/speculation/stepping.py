"""Stepping a vector environment while the event loop speculates: each environment on its own where it can be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_all
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import iterate

from obsspec_gym.speculation.conform import conform
from obsspec_gym.types import Action, Observation

Batch = tuple[Any, np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class View:
    """What a policy sees: an observation, and what else it reads of ``info``.

    Attributes:
        observation: In the form its space gives it.
        visible: The entries of ``info`` that the policy reads, by name (``None`` where one is missing); ``None`` where
            it reads none.
    """

    observation: Observation
    visible: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One environment's part of a step.

    Attributes:
        view: What the step returned.
        last: What the action brought; another view only where SAME_STEP reset at once.
        ends: Whether the episode is over, by its end or cut off.
    """

    view: View
    last: View
    ends: bool


class Viewer:
    """Makes views of what an environment returns.

    Args:
        space: Of one observation.
        visible: Names of the entries of ``info`` that the policy reads.
    """

    def __init__(self, space: gym.Space[Any], visible: Sequence[str] = ()) -> None:
        self.space = space
        self.names = tuple(visible)

    def of(self, observation: Observation, info: Mapping[str, Any]) -> View:
        """The view of one environment's observation and info."""
        seen = {name: conform(_ANYTHING, info.get(name)) for name in self.names} if self.names else None
        return View(conform(self.space, observation), seen)

    def in_batch(self, observation: Observation, infos: Mapping[str, Any], index: int) -> View:
        """The view of one environment's observation and its part of a batch's infos."""
        return self.of(observation, {name: pick(infos, name, index) for name in self.names})


_ANYTHING: gym.Space[Any] = gym.Space()
"""Stands for the space of an entry of ``info``: such an entry is copied as it is."""


def pick(infos: Mapping[str, Any], name: str, index: int) -> Any:
    """One environment's entry of a batch's infos; ``None`` where it has none."""
    value = infos.get(name)
    mask = infos.get(f"_{name}")
    if value is None or (mask is not None and not mask[index]):
        return None
    if isinstance(value, Mapping):
        return {key: pick(value, key, index) for key in value if not key.startswith("_")}
    return value[index]


class Stepper(Protocol):
    """Runs one step of a vector environment: :meth:`send`, then :meth:`receive`, on the caller's thread."""

    barrier: bool

    def send(self, actions: Any, each: Sequence[Action]) -> list[Future[Row]]:
        """Begins a step; a future for each environment's part, resolved at the latest when :meth:`receive` returns.

        What raises here was refused before anything was sent.
        """
        ...

    def receive(self) -> Batch:
        """Waits for the step. What raises here ends the step for all: every future has its error too."""
        ...


@runtime_checkable
class Collating(Protocol):
    """A vector environment that steps its environments separately and can put the results together."""

    num_envs: int

    def check(self, actions: Any) -> Any:
        """Raises for actions that are not legal, before any is sent."""
        ...

    def submit(self, env_id: int, action: Any) -> Future[Any]:
        """Sends one environment's action."""
        ...

    def collate(self, results: Sequence[Any]) -> Batch:
        """The batch made of one result for each environment."""
        ...


def stepper_for(env: VectorEnv[Any, Any, Any], viewer: Viewer) -> Stepper:
    """The stepper that suits a vector environment."""
    return IndependentStepper(env, viewer) if isinstance(env, Collating) else BarrierStepper(env, viewer)


class IndependentStepper:
    """Every environment's part arrives as soon as its own tool has answered."""

    barrier = False

    def __init__(self, env: Collating, viewer: Viewer) -> None:
        self._env = env
        self._viewer = viewer
        self._results: list[Future[Any]] = []

    def send(self, actions: Any, each: Sequence[Action]) -> list[Future[Row]]:
        """Checks all actions, then sends each."""
        self._env.check(each)
        self._results = [self._env.submit(index, action) for index, action in enumerate(each)]
        return [_then(result, self._row) for result in self._results]

    def _row(self, result: Any) -> Row:
        observation, _, terminated, truncated, info = result
        view = self._viewer.of(observation, info)
        reset = "final_obs" in info
        last = self._viewer.of(info["final_obs"], info.get("final_info", {})) if reset else view
        return Row(view, last, bool(terminated or truncated))

    def receive(self) -> Batch:
        """Puts the parts together."""
        wait_all(self._results)
        return self._env.collate([result.result() for result in self._results])


class BarrierStepper:
    """All parts arrive at once, with the slowest environment.

    The step runs on the caller's own thread, as it would without speculation: environments that belong to a thread
    (or mind signals) go on to work, and a Ctrl-C reaches them.
    """

    barrier = True

    def __init__(self, env: VectorEnv[Any, Any, Any], viewer: Viewer) -> None:
        self._env = env
        self._viewer = viewer
        self._actions: Any = None
        self._rows: list[Future[Row]] = []

    def send(self, actions: Any, each: Sequence[Action]) -> list[Future[Row]]:
        """Sends nothing yet: the environments start in :meth:`receive`."""
        self._actions = actions
        self._rows = [begun_future() for _ in each]
        return self._rows

    def receive(self) -> Batch:
        """Steps all environments."""
        try:
            batch: Batch = self._env.step(self._actions)
            rows = self._split(batch)
        except BaseException as error:
            for future in self._rows:  # an interrupt is the caller's: it must not end the event loop
                future.set_exception(error if isinstance(error, Exception) else RuntimeError("interrupted"))
            raise
        for future, row in zip(self._rows, rows, strict=True):
            future.set_result(row)
        return batch

    def _split(self, batch: Batch) -> list[Row]:
        observations, _, terminated, truncated, infos = batch
        rows = []
        for index, observation in enumerate(iterate(self._env.observation_space, observations)):
            view = last = self._viewer.in_batch(observation, infos, index)
            final = pick(infos, "final_obs", index)
            if final is not None:
                last = self._viewer.in_batch(final, infos.get("final_info", {}), index)
            rows.append(Row(view, last, bool(terminated[index] or truncated[index])))
        return rows


def _then(future: Future[Any], function: Callable[[Any], Row]) -> Future[Row]:
    """A future of what the function makes of another's result."""
    chained: Future[Row] = begun_future()

    def settle(done: Future[Any]) -> None:
        try:
            chained.set_result(function(done.result()))
        except Exception as error:  # noqa: BLE001 - boundary: whoever awaits the chained future is told
            chained.set_exception(error)

    future.add_done_callback(settle)
    return chained


def begun_future() -> Future[Any]:
    """A future that cannot be cancelled: what was sent is executed, whoever still waits for it."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future
