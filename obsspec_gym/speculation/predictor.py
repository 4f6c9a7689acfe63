"""Asking a world model without depending on it (invariant I4).

A world model may raise, hang, lie or die. Whatever it does, a rollout goes on as if it had not been asked: every call
has a deadline, failures are counted with their reasons, and after several in a row it is left alone for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from obsspec_gym.agents.history import History
from obsspec_gym.agents.world_model.base import WorldModel
from obsspec_gym.agents.world_model.calibration import outcome_key
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.types import Action, Prediction, Transition


@dataclass(frozen=True, slots=True)
class Patience:
    """How much is put up with.

    Attributes:
        deadline: Seconds a prediction may take before it is given up.
        failures: Failures in a row after which the world model is left alone.
        pause: Seconds it is left alone; then one call tries again.
    """

    deadline: float = 30.0
    failures: int = 5
    pause: float = 60.0

    def __post_init__(self) -> None:
        if self.deadline <= 0 or self.failures < 1 or self.pause < 0:
            raise InvalidArgumentError(
                "patience needs deadline > 0, failures >= 1 and pause >= 0, got "
                f"deadline={self.deadline}, failures={self.failures} and pause={self.pause}"
            )


@dataclass(slots=True)
class _Breaker:
    """Opens after several failures in a row."""

    patience: Patience
    in_a_row: int = 0
    opened: float = field(default=float("-inf"))

    def closed(self, now: float) -> bool:
        return self.in_a_row < self.patience.failures or now - self.opened >= self.patience.pause

    def failed(self, now: float) -> None:
        self.in_a_row += 1
        self.opened = now

    def succeeded(self) -> None:
        self.in_a_row = 0


class Predictor:
    """A world model behind a deadline and a circuit breaker.

    Args:
        world_model: Whom to ask.
        patience: How much is put up with.

    Attributes:
        failures: How often it failed, by reason; nothing is lost silently.
    """

    def __init__(self, world_model: WorldModel, patience: Patience | None = None) -> None:
        self._world_model = world_model
        self._patience = patience or Patience()
        self._breaker = _Breaker(self._patience)
        self.failures: Counter[str] = Counter()

    @property
    def open(self) -> bool:
        """Whether the world model is being left alone at this moment."""
        return not self._breaker.closed(asyncio.get_running_loop().time())

    async def predict(self, acted: History, breadth: int) -> list[Prediction]:
        """At most ``breadth`` distinct predictions of what the last action of ``acted`` brings; never raises.

        Cancelling it cancels the call, and returns at once even if the world model does not react.
        """
        loop = asyncio.get_running_loop()
        if not self._breaker.closed(loop.time()) or acted.parent is None:
            return []
        call = loop.create_task(self._ask(acted.parent, acted.last_action, breadth))
        try:
            await asyncio.wait({call}, timeout=self._patience.deadline)
        finally:
            # Cancelled without being awaited: one that ignores its cancellation must not hold up the turn.
            call.cancel()
            call.add_done_callback(_retrieve)
        if not call.done():
            return self._give_up(f"no prediction within {self._patience.deadline:g} s")
        if call.cancelled():
            return self._give_up("the world model cancelled itself")
        error = call.exception()
        if error is not None:
            return self._give_up(f"{type(error).__name__}: {error}")
        self._breaker.succeeded()
        return call.result()

    async def _ask(self, history: History, action: Action, breadth: int) -> list[Prediction]:
        predictions = await self._world_model.predict(history, action, breadth)
        if len(predictions) == 1 and isinstance(predictions[0], Prediction):
            return list(predictions)
        distinct: dict[bytes, Prediction] = {}
        for prediction in predictions:
            if not isinstance(prediction, Prediction):
                raise TypeError(f"a world model returns Predictions, got {type(prediction).__name__}")
            distinct.setdefault(outcome_key(prediction), prediction)
        return list(distinct.values())[:breadth]

    def observe(self, transition: Transition) -> None:
        """Passes on what really happened; a world model that cannot take it is counted as failing."""
        try:
            self._world_model.observe(transition)
        except Exception as error:  # noqa: BLE001 - boundary I4: a broken world model never stops a rollout
            self._give_up(f"observe: {type(error).__name__}: {error}")

    def reject(self, reason: str) -> None:
        """Counts a prediction that could not be used."""
        self._give_up(reason)

    def _give_up(self, reason: str) -> list[Prediction]:
        self.failures[reason] += 1
        self._breaker.failed(asyncio.get_running_loop().time())
        return []


class CallableWorldModel:
    """A plain function as a world model.

    Args:
        function: ``function(history, action)`` returns a :class:`~obsspec_gym.types.Prediction`, a list of them, a
            bare observation, or ``None`` for no idea. It runs in a thread of its own, so it may block or hang: then
            only its prediction is missing.
        source: The name its predictions go by.

    Example:
        >>> import asyncio
        >>> from obsspec_gym.types import EpisodeId
        >>> model = CallableWorldModel(lambda history, action: history.value + action)
        >>> history = History.start(EpisodeId("walk"), 1)
        >>> asyncio.run(model.predict(history, 2, n=1))[0].observation
        3
    """

    def __init__(self, function: Callable[[History, Action], Any], source: str = "function") -> None:
        self._function = function
        self._source = source

    async def predict(self, history: History, action: Action, n: int, partial: str = "") -> list[Prediction]:
        """Calls the function."""
        result = await _in_daemon_thread(self._function, history, action)
        if result is None:
            return []
        if isinstance(result, list):
            return result[:n]
        if isinstance(result, Prediction):
            return [result]
        return [Prediction(result, source=self._source)]

    def observe(self, transition: Transition) -> None:
        """Learns nothing."""

    def close(self) -> None:
        """Owns nothing."""


def as_world_model(world_model: WorldModel | Callable[[History, Action], Any]) -> WorldModel:
    """Accepts a world model, or a function ``(history, action)`` that becomes one.

    Raises:
        TypeError: If it is neither.
    """
    if isinstance(world_model, WorldModel):
        return world_model
    if callable(world_model):
        return CallableWorldModel(world_model)
    raise TypeError(
        f"world_model must be a WorldModel or a callable (history, action), got {type(world_model).__name__}"
    )


def _in_daemon_thread(function: Callable[..., Any], *arguments: Any) -> Awaitable[Any]:
    """Like ``asyncio.to_thread``, but a call that never returns holds up neither a pool nor the exit."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    def work() -> None:
        result, failure = None, None
        try:
            result = function(*arguments)
        except BaseException as error:  # noqa: BLE001 - boundary: handed to whoever awaits the future
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=work, name="obsspec-world-model", daemon=True).start()
    return future


def _retrieve(call: asyncio.Task[Any]) -> None:
    if not call.cancelled():
        call.exception()
