"""One environment on a thread of its own: here episodes end and begin anew, and here errors stop."""

from __future__ import annotations

import enum
import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

import gymnasium as gym
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space, create_empty_array, iterate

from obsspec_gym.errors import ClosedError, InvalidArgumentError, SandboxUnavailableError
from obsspec_gym.types import Observation

logger = logging.getLogger(__name__)

T = TypeVar("T")


class StepResult(NamedTuple):
    """What ``gymnasium.Env.step`` returns, with names."""

    observation: Observation
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


class Phase(enum.Enum):
    """Where an environment is in its episode."""

    NEW = "new"
    """Never reset, or the last reset raised."""
    RUNNING = "running"
    """The next action is executed."""
    BROKEN = "broken"
    """The reset failed: the next step truncates the episode with the reason."""
    OVER = "over"
    """Terminated or truncated: the next step resets it, or is refused where autoreset is disabled."""


class EnvWorker:
    """Runs the calls of one environment, one at a time, on a daemon thread that starts with the first of them.

    An exception of the environment becomes a truncated episode with ``info["reason"]`` and ``info["broken"]``; only
    :class:`~obsspec_gym.errors.ClosedError` and what an explicit reset is asked wrongly reach the caller.

    Args:
        env: The environment, owned from now on. Its ``close`` must be callable while a step runs.
        name: What messages and the thread call it.
        autoreset_mode: What a step does when the episode is over.
    """

    def __init__(self, env: gym.Env[Any, Any], name: str, autoreset_mode: AutoresetMode) -> None:
        self.env = env
        self.name = name
        self.phase = Phase.NEW
        self.last_observation = _blank(env.observation_space)
        self._mode = autoreset_mode
        self._failure = ""
        self._lock = threading.Lock()
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._pending: Future[Any] | None = None
        self._thread: threading.Thread | None = None
        self._stopping = False

    @property
    def busy(self) -> bool:
        """Whether a call is under way."""
        return self._pending is not None and not self._pending.done()

    @property
    def steps_next(self) -> bool:
        """Whether the next step executes its action (and does not reset, or report a failed reset)."""
        return self.phase is Phase.RUNNING

    def require_idle(self) -> None:
        """Raises :class:`~obsspec_gym.errors.InvalidArgumentError` while a call is under way."""
        if self.busy:
            raise InvalidArgumentError(f"{self.name} takes one call at a time, and its last one is still under way")

    def require_step(self) -> None:
        """Raises what a step would be refused with."""
        self.require_idle()
        if self.phase is Phase.NEW:
            raise ResetNeeded(f"{self.name} was not reset yet: call reset() first")
        if self.phase is Phase.OVER and self._mode is AutoresetMode.DISABLED:
            raise ResetNeeded(f"the episode of {self.name} is over: reset it first (autoreset is disabled)")

    def wait(self) -> None:
        """Waits until no call is under way, however it ends."""
        if self._pending is not None:
            self._pending.exception()

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Runs a function on the environment's thread.

        The future cannot be cancelled: what was sent is executed.

        Raises:
            InvalidArgumentError: If another call is under way.
            ClosedError: After :meth:`stop`.
        """
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            if self._stopping:
                raise ClosedError(f"{self.name} is closed")
            self.require_idle()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=f"obsspec_gym {self.name}", daemon=True)
                self._thread.start()
            self._pending = future
            self._calls.put((function, future))
        return future

    def step(self, action: Any) -> StepResult:
        """One step with autoreset; on the environment's thread."""
        if self.phase is Phase.OVER:
            observation, info = self._autoreset()
            return StepResult(observation, 0.0, False, False, info)
        result = self._guarded_step(action)
        self.last_observation = result.observation
        if not (result.terminated or result.truncated):
            return result
        self.phase = Phase.OVER
        if self._mode is not AutoresetMode.SAME_STEP:
            return result
        observation, info = self._autoreset()
        info = {"final_obs": result.observation, "final_info": result.info, **info}
        return result._replace(observation=observation, info=info)

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Observation, dict[str, Any]]:
        """An explicit reset; on the environment's thread.

        Raises:
            InvalidArgumentError: As the environment does.
            SandboxUnavailableError: As the environment does.
        """
        self.phase = Phase.NEW
        try:
            return self._begun(*self.env.reset(seed=seed, options=options))
        except (InvalidArgumentError, SandboxUnavailableError, ClosedError):
            raise  # whoever called can mend it
        except Exception as error:  # noqa: BLE001 - an environment's bug is one bad episode, not the end of a run
            return self._broken(error)

    def stop(self) -> None:
        """Lets the thread end and the environment close, at once even if a step runs. Does not wait."""
        with self._lock:
            if self._stopping:
                return
            self._stopping = True
            self._calls.put(None)
        if self._thread is None or self.busy:
            self._close_env()

    def join(self, timeout: float) -> bool:
        """Waits for the thread after :meth:`stop`; returns whether it has ended."""
        if self._thread is None or self._thread is threading.current_thread():
            return True
        self._thread.join(max(0.0, timeout))
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            function, future = call
            try:
                result = function()
            except BaseException as error:  # noqa: BLE001 - whoever holds the future is told
                future.set_exception(error)
            else:
                future.set_result(result)
        self._close_env()

    def _close_env(self) -> None:
        try:
            self.env.close()
        except Exception:  # the others are to be closed all the same
            logger.exception("closing %s failed", self.name)

    def _guarded_step(self, action: Any) -> StepResult:
        if self.phase is Phase.BROKEN:
            return StepResult(self.last_observation, 0.0, False, True, {"reason": self._failure, "broken": True})
        try:
            observation, reward, terminated, truncated, info = self.env.step(action)
        except ClosedError:
            raise
        except Exception as error:  # noqa: BLE001 - an environment's bug is one bad episode, not the end of a run
            return StepResult(self.last_observation, 0.0, False, True, {"reason": self._tell(error), "broken": True})
        return StepResult(observation, float(reward), bool(terminated), bool(truncated), info)

    def _autoreset(self) -> tuple[Observation, dict[str, Any]]:
        try:
            return self._begun(*self.env.reset())
        except ClosedError:
            raise
        except Exception as error:  # noqa: BLE001 - nobody called this reset, so nobody could catch it
            return self._broken(error)

    def _begun(self, observation: Observation, info: dict[str, Any]) -> tuple[Observation, dict[str, Any]]:
        self.phase = Phase.RUNNING
        self.last_observation = observation
        return observation, info

    def _broken(self, error: Exception) -> tuple[Observation, dict[str, Any]]:
        self.phase = Phase.BROKEN
        self._failure = self._tell(error)
        return self.last_observation, {"reason": self._failure}

    def _tell(self, error: Exception) -> str:
        logger.warning("%s raised; its episode is truncated", self.name, exc_info=error)
        return f"{type(error).__name__}: {error}"


def _blank(space: gym.Space[Any]) -> Observation:
    """What stands for an observation where there was none yet."""
    return next(iterate(batch_space(space, 1), create_empty_array(space, 1)))
