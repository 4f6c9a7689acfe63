"""Asking a world model without depending on it (invariant I4).

A world model may raise, hang, lie or die. Whatever it does, a rollout goes on as if it had not been asked: every call
has a deadline, failures are counted with their reasons, and after several in a row it is left alone for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from obsspec_gym.agents.history import History
from obsspec_gym.agents.world_model.base import WorldModel
from obsspec_gym.agents.world_model.calibration import outcome_key
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.types import Action, Prediction, Transition

Deliver = Callable[[list[Prediction]], None]


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


class Question:
    """A question that was put to the world model. Its answer is delivered, unless it is given up before.

    Attributes:
        asked: Clock time at which it was put.
        deliver: Takes the answer; ``None`` once the question is answered, has failed or was given up.
        task: The world model at work on it.
    """

    __slots__ = ("asked", "deliver", "task")

    def __init__(self, asked: float, deliver: Deliver) -> None:
        self.asked = asked
        self.deliver: Deliver | None = deliver
        self.task: asyncio.Task[None] | None = None

    def done(self) -> bool:
        """Whether nothing more comes of it."""
        return self.deliver is None

    def cancel(self) -> None:
        """Gives it up. Nobody waits for the world model: one that ignores its cancellation holds up nothing."""
        self.deliver = None
        if self.task is not None:
            self.task.cancel()

    async def wait(self) -> None:
        """Waits until the world model is done with it."""
        if self.task is not None:
            await asyncio.wait({self.task})


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
        self._asked: deque[Question] = deque()  # the first has the first deadline: all have the same time
        self._timer: asyncio.TimerHandle | None = None
        self.failures: Counter[str] = Counter()

    @property
    def open(self) -> bool:
        """Whether the world model is being left alone at this moment."""
        return not self._breaker.closed(asyncio.get_running_loop().time())

    def ask(self, acted: History, breadth: int, deliver: Deliver) -> Question | None:
        """Asks what the last action of ``acted`` brings; never raises.

        Args:
            acted: A history that ends in an action.
            breadth: How many predictions at most.
            deliver: Is called with the predictions, distinct ones, if they come in time.

        Returns:
            The question; ``None`` where the world model is left alone at this moment.
        """
        loop = asyncio.get_running_loop()
        now = loop.time()
        if not self._breaker.closed(now) or acted.parent is None:
            return None
        question = Question(now, deliver)
        question.task = loop.create_task(self._answer(question, acted.parent, acted.last_action, breadth))
        while self._asked and self._asked[0].done():
            self._asked.popleft()
        self._asked.append(question)
        if self._timer is None:
            self._timer = loop.call_at(now + self._patience.deadline, self._expire)
        return question

    async def _answer(self, question: Question, history: History, action: Action, breadth: int) -> None:
        """Has the world model predict, and delivers what it says if anybody still wants it."""
        predictions: list[Prediction] = []
        failure = None
        try:
            predictions = _distinct(await self._world_model.predict(history, action, breadth), breadth)
        except asyncio.CancelledError:
            if question.done():
                raise
            failure = "the world model cancelled itself"
        except Exception as error:  # noqa: BLE001 - boundary I4: a broken world model never stops a rollout
            failure = f"{type(error).__name__}: {error}"
        deliver, question.deliver = question.deliver, None
        if deliver is None:
            return
        if failure is not None:
            self.reject(failure)
            return
        self._breaker.succeeded()
        deliver(predictions)

    def _expire(self) -> None:
        """Gives up what has passed its deadline, and looks again at that of the next."""
        loop = asyncio.get_running_loop()
        deadline = self._patience.deadline
        while self._asked and (self._asked[0].done() or self._asked[0].asked + deadline <= loop.time()):
            question = self._asked.popleft()
            if not question.done():
                question.cancel()
                self.reject(f"no prediction within {deadline:g} s")
        self._timer = loop.call_at(self._asked[0].asked + deadline, self._expire) if self._asked else None

    def observe(self, transition: Transition) -> None:
        """Passes on what really happened; a world model that cannot take it is counted as failing."""
        try:
            self._world_model.observe(transition)
        except Exception as error:  # noqa: BLE001 - boundary I4: a broken world model never stops a rollout
            self.reject(f"observe: {type(error).__name__}: {error}")

    def reject(self, reason: str) -> None:
        """Counts a failure: no prediction, or one that could not be used."""
        self.failures[reason] += 1
        self._breaker.failed(asyncio.get_running_loop().time())

    def close(self) -> None:
        """Gives up every question. Idempotent."""
        for question in self._asked:
            question.cancel()
        self._asked.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _distinct(predictions: Sequence[Prediction], count: int) -> list[Prediction]:
    """The first of the predictions that differ.

    Raises:
        TypeError: If one is none.
    """
    if len(predictions) == 1 and isinstance(predictions[0], Prediction):
        return list(predictions)
    distinct: dict[bytes, Prediction] = {}
    for prediction in predictions:
        if not isinstance(prediction, Prediction):
            raise TypeError(f"a world model returns Predictions, got {type(prediction).__name__}")
        distinct.setdefault(outcome_key(prediction), prediction)
    return list(distinct.values())[:count]


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
