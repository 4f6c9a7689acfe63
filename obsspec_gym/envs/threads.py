"""Many environments at once, each on its own thread: in step, or each at its own pace."""

from __future__ import annotations

import atexit
import functools
import logging
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_all
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array

from obsspec_gym.envs.arguments import read_autoreset_mode, read_reset_mask, read_seeds
from obsspec_gym.envs.mailbox import Mailbox
from obsspec_gym.envs.worker import EnvWorker, StepResult
from obsspec_gym.errors import ClosedError, InvalidArgumentError
from obsspec_gym.types import Action, Observation

logger = logging.getLogger(__name__)

_CLOSE_SECONDS = 10.0

Arrays = tuple[Any, np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any], dict[str, Any]]


class ThreadVectorEnv(VectorEnv[Any, Any, np.ndarray[Any, Any]]):
    """Environments whose steps mostly wait, stepped by one thread each. There is no barrier between them.

    Three ways to drive them, the latter two without waiting for the slowest:

    - :meth:`reset` and :meth:`step`: Gymnasium's vector interface, all autoreset modes.
    - :meth:`send` and :meth:`recv`: send actions to some, receive whichever results are there.
    - :meth:`submit` and :meth:`submit_reset`: one call of one environment as a future. The others are built on these.

    An environment that raises has its episode truncated with ``info["reason"]`` and goes on with the next one. Threads
    start with the first call and end in :meth:`close`.

    Args:
        env_fns: Make the environments; each ``close`` must be callable while its step runs.
        autoreset_mode: ``NEXT_STEP`` (the step after an episode's end ignores its action and resets), ``SAME_STEP``
            (the last observation and info are ``final_obs`` and ``final_info``) or ``DISABLED`` (reset them yourself
            with ``options={"reset_mask": mask}``).

    Raises:
        InvalidArgumentError: If there is no environment, or no such mode.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gym.Env[Any, Any]]],
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    ) -> None:
        if not env_fns:
            raise InvalidArgumentError("a vector environment needs at least one environment, got none")
        mode = read_autoreset_mode(autoreset_mode)
        envs = [make() for make in env_fns]
        self.num_envs = len(envs)
        self.metadata = {**envs[0].metadata, "autoreset_mode": mode}
        self.render_mode = envs[0].render_mode
        self.single_observation_space = envs[0].observation_space
        self.single_action_space = envs[0].action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._workers = [EnvWorker(env, f"environment {i}", mode) for i, env in enumerate(envs)]
        self._results: Mailbox[StepResult] = Mailbox()
        self._finalizer = weakref.finalize(self, _close, self._workers, _CLOSE_SECONDS)
        # When the interpreter ends, threads end before what they use: this comes before all finalisers, theirs too.
        atexit.register(self._finalizer)

    def submit(self, env_id: int, action: Action) -> Future[StepResult]:
        """Starts one step of one environment.

        Args:
            env_id: Which.
            action: What it is to do; ignored where this step only resets (see ``autoreset_mode``).

        Returns:
            A future of the step's result. It cannot be cancelled: what was sent is executed.

        Raises:
            InvalidArgumentError: If the environment has a call under way, there is none of that number, or the action
                is not one; nothing was sent.
            ResetNeeded: If it was never reset, or its episode is over and autoreset disabled.
            ClosedError: If this is closed.
        """
        worker = self._worker(env_id)
        self._check(worker, action)
        return worker.call(functools.partial(worker.step, action))

    def submit_reset(
        self, env_id: int, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> Future[tuple[Observation, dict[str, Any]]]:
        """Starts a reset of one environment.

        Args:
            env_id: Which.
            seed: As in ``Env.reset``.
            options: As in ``Env.reset``; copied.

        Returns:
            A future of observation and info.

        Raises:
            InvalidArgumentError: If the environment has a call under way or there is none of that number.
            ClosedError: If this is closed.
        """
        worker = self._worker(env_id)
        return worker.call(functools.partial(worker.reset, seed, None if options is None else dict(options)))

    def send(self, actions: Sequence[Action], env_ids: Sequence[int] | None = None) -> None:
        """Starts steps whose results :meth:`recv` returns as they come.

        Args:
            actions: One for each of ``env_ids``.
            env_ids: Which environments; by default all.

        Raises:
            InvalidArgumentError, ResetNeeded, ClosedError: As :meth:`submit`, before any of them was sent.
        """
        self._require_open()
        ids = list(range(self.num_envs) if env_ids is None else env_ids)
        if len(set(ids)) < len(ids):
            raise InvalidArgumentError(f"env_ids must name each environment once, got {ids}")
        for env_id, action in zip(ids, self._checked(actions, ids), strict=True):
            self._results.expect(env_id, self.submit(env_id, action))

    def recv(self, min_results: int = 1, timeout: float | None = None) -> list[tuple[int, StepResult]]:
        """Waits for results of :meth:`send`, in the order in which they came.

        Args:
            min_results: How many to wait for; whatever else is there is returned with them.
            timeout: Seconds to wait at most; then what is there is returned, if only an empty list.

        Raises:
            InvalidArgumentError: If fewer than ``min_results`` are to come.
            ClosedError: If this is closed, or was while it waited.
        """
        self._require_open()
        if min_results > len(self._results):
            raise InvalidArgumentError(
                f"recv was asked to wait for {min_results} results, and {len(self._results)} are sent and not received"
            )
        return [(env_id, future.result()) for env_id, future in self._results.take(min_results, timeout)]

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Resets all environments, or those of ``options["reset_mask"]``.

        Calls of theirs that are still under way are waited for; results not yet received are dropped.

        Args:
            seed: Environment ``i`` gets ``seed + i``, or the ``i``-th of a sequence.
            options: Passed to every environment, without ``reset_mask`` (a boolean array of shape ``(num_envs,)``).

        Returns:
            Batched observations (of the environments left alone, their last) and infos.

        Raises:
            InvalidArgumentError: If an argument is not that; also as the environments do.
            SandboxUnavailableError: If this machine cannot provide the sandboxes.
            ClosedError: If this is closed.
        """
        self._require_open()
        seeds = read_seeds(seed, self.num_envs)
        options = None if options is None else dict(options)
        ids = read_reset_mask((options or {}).pop("reset_mask", None), self.num_envs)
        for env_id in ids:
            self._workers[env_id].wait()
        self._results.drop(ids)
        futures = [self.submit_reset(env_id, seed=seeds[env_id], options=options) for env_id in ids]
        wait_all(futures)
        infos: dict[str, Any] = {}
        for env_id, future in zip(ids, futures, strict=True):
            infos = self._add_info(infos, future.result()[1], env_id)
        return self._batch([worker.last_observation for worker in self._workers]), infos

    def step(self, actions: Sequence[Action]) -> Arrays:
        """Steps all environments and waits for all of them.

        Args:
            actions: A sequence of one action for each environment.

        Returns:
            Batched observations, rewards, terminations, truncations and infos; arrays of shape ``(num_envs,)``.

        Raises:
            InvalidArgumentError, ResetNeeded, ClosedError: As :meth:`submit`, before anything was sent.
        """
        checked = self.check(actions)
        futures = [self.submit(env_id, action) for env_id, action in enumerate(checked)]
        wait_all(futures)
        return self.collate([future.result() for future in futures])

    def check(self, actions: Sequence[Action]) -> Sequence[Action]:
        """Raises what :meth:`step` would be refused with; sends nothing.

        Args:
            actions: As in :meth:`step`.

        Returns:
            The actions.
        """
        self._require_open()
        if len(self._results):
            raise InvalidArgumentError(f"{len(self._results)} results of send() were not received: call recv() first")
        return self._checked(actions, range(self.num_envs))

    def collate(self, results: Sequence[StepResult]) -> Arrays:
        """What :meth:`step` returns, made of one result for each environment, in their order.

        Args:
            results: Of :meth:`submit`, say.
        """
        infos: dict[str, Any] = {}
        for env_id, result in enumerate(results):
            infos = self._add_info(infos, result.info, env_id)
        return (
            self._batch([result.observation for result in results]),
            np.array([result.reward for result in results], dtype=np.float64),
            np.array([result.terminated for result in results], dtype=np.bool_),
            np.array([result.truncated for result in results], dtype=np.bool_),
            infos,
        )

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Calls a method of every environment by name, or reads an attribute; on the environments' threads."""

        def read(env: gym.Env[Any, Any]) -> Any:
            value = env.get_wrapper_attr(name)
            return value(*args, **kwargs) if callable(value) else value

        return self._each([functools.partial(read, worker.env) for worker in self._workers])

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """An attribute of every environment."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Sets an attribute of every environment.

        Args:
            name: Of the attribute.
            values: One value for all, or a list or tuple with one for each.
        """
        each = values if isinstance(values, list | tuple) else [values] * self.num_envs
        if len(each) != self.num_envs:
            raise InvalidArgumentError(f"values must be one for each of {self.num_envs} environments, got {len(each)}")
        pairs = zip(self._workers, each, strict=True)
        self._each([functools.partial(worker.env.set_wrapper_attr, name, value) for worker, value in pairs])

    def render(self) -> tuple[Any, ...]:
        """What every environment renders."""
        return self.call("render")

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]  # one seed each; Gymnasium types both ways
        """Every environment's seed."""
        return self.get_attr("np_random_seed")

    @property  # type: ignore[misc]  # Gymnasium's has a setter, which nothing could set here
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]  # see above
        """Every environment's generator."""
        return self.get_attr("np_random")

    def close_extras(self, timeout: float = _CLOSE_SECONDS) -> None:
        """Closes the environments, ends steps under way (their futures raise ``ClosedError``) and the threads.

        Args:
            timeout: Seconds to wait for the threads.
        """
        self.closed = True  # from now on nothing new is sent
        self._finalizer.detach()
        atexit.unregister(self._finalizer)
        _close(self._workers, timeout)

    def _check_action(self, action: Action) -> None:
        """Raises :class:`~obsspec_gym.errors.InvalidArgumentError` for what cannot be an action."""

    def _check(self, worker: EnvWorker, action: Action) -> None:
        worker.require_step()
        if worker.steps_next:
            self._check_action(action)

    def _checked(self, actions: object, ids: Sequence[int]) -> Sequence[Action]:
        if isinstance(actions, str | bytes) or not isinstance(actions, Sequence | np.ndarray):
            raise InvalidArgumentError(
                f"actions must be a sequence of {len(ids)}, one for each environment, got {type(actions).__name__}"
            )
        if len(actions) != len(ids):
            raise InvalidArgumentError(f"actions must be {len(ids)}, one for each environment, got {len(actions)}")
        for env_id, action in zip(ids, actions, strict=True):
            self._check(self._worker(env_id), action)
        return actions  # type: ignore[return-value]  # a batch of actions iterates over single ones

    def _worker(self, env_id: int) -> EnvWorker:
        self._require_open()
        if not isinstance(env_id, int | np.integer) or not 0 <= env_id < self.num_envs:
            raise InvalidArgumentError(f"env_id must be in 0..{self.num_envs - 1}, got {env_id!r}")
        return self._workers[env_id]

    def _require_open(self) -> None:
        if self.closed:
            raise ClosedError("the vector environment is closed")

    def _batch(self, observations: list[Observation]) -> Any:
        empty = create_empty_array(self.single_observation_space, n=self.num_envs, fn=np.zeros)
        return concatenate(self.single_observation_space, observations, empty)  # type: ignore[arg-type]  # typed for spaces whose batch is an array

    def _each(self, functions: Sequence[Callable[[], Any]]) -> tuple[Any, ...]:
        self._require_open()
        for worker in self._workers:
            worker.require_idle()
        futures = [worker.call(function) for worker, function in zip(self._workers, functions, strict=True)]
        wait_all(futures)
        return tuple(future.result() for future in futures)


def _close(workers: Sequence[EnvWorker], timeout: float) -> None:
    """Closes environments and threads; knows nothing of the vector, which may be gone already."""
    deadline = time.monotonic() + timeout
    for worker in workers:
        worker.stop()
    for worker in workers:
        if not worker.join(deadline - time.monotonic()):
            logger.warning("%s did not end within %g s; its thread is left behind", worker.name, timeout)
