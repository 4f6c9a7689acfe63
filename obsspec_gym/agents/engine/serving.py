"""A simulated inference server at the scale of real ones: continuous batching on whatever clock the loop has.

A decoding step slows with the number of running sequences and with their context; prompts are read in chunks that
share the engine with decoding; what was read stays in a prefix cache of stated size and is evicted when it is full.
Completions are lengths, not text. Many decoding steps between two events are taken in one jump, so that hours of
serving cost seconds.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from obsspec_gym.agents.engine.base import EngineLoad
from obsspec_gym.agents.engine.prefix_cache import PrefixCache
from obsspec_gym.agents.engine.serving_speed import Burst, ServingSpeed
from obsspec_gym.agents.generation import Generation
from obsspec_gym.agents.history import History
from obsspec_gym.errors import ClosedError, InvalidArgumentError
from obsspec_gym.types import Completion, Priority


@dataclass(slots=True)
class ServingCounters:
    """What a server has done.

    Attributes:
        submitted: Requests.
        cancelled: Requests cancelled while under way.
        preempted: Times a request was put back because the cache was full.
        decoded: Tokens decoded.
        read: Prompt tokens read.
        found: Prompt tokens found in the cache.
        busy: Seconds in which it was not idle.
    """

    submitted: int = 0
    cancelled: int = 0
    preempted: int = 0
    decoded: int = 0
    read: int = 0
    found: int = 0
    busy: float = 0.0


@dataclass(eq=False, slots=True)
class _Request:
    history: History
    length: int
    priority: Priority
    arrival: int
    future: asyncio.Future[Completion]
    unread: int = 0
    done: int = 0

    @property
    def context(self) -> int:
        return self.history.length + self.done

    @property
    def order(self) -> tuple[Priority, int]:
        return self.priority, self.arrival


class ServingEngine:
    """A server of a given speed.

    Unlike the engines that generate text it is asked with a history and a completion's length; what it gives is a
    completion of that many tokens. Committed requests go before speculative ones; when the cache overflows, the
    last of the speculative ones is put back first.

    Args:
        speed: How fast it is.

    Example:
        >>> from obsspec_gym.speculation.clock import run_virtual
        >>> from obsspec_gym.types import EpisodeId
        >>> async def main():
        ...     engine = ServingEngine(ServingSpeed(step=0.01))
        ...     await engine.submit(History.start(EpisodeId("a"), "task", (0,) * 100), 50)
        ...     return round(asyncio.get_running_loop().time(), 6)
        >>> run_virtual(main())
        0.5
    """

    def __init__(self, speed: ServingSpeed) -> None:
        self.speed = speed
        self.counters = ServingCounters()
        self.cache = PrefixCache(speed.capacity)
        self._waiting: list[_Request] = []
        self._reading: list[_Request] = []
        self._running: list[_Request] = []
        self._burst: Burst | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._wake: asyncio.Future[None] | None = None
        self._driver: asyncio.Task[None] | None = None
        self._closed = False

    def submit(self, history: History, length: int, *, priority: Priority = Priority.COMMITTED) -> Generation:
        """Starts a generation of ``length`` tokens after ``history``.

        Raises:
            InvalidArgumentError: If the length is not positive, or prompt and completion exceed the cache.
            ClosedError: If the engine is closed.
        """
        if self._closed:
            raise ClosedError("the engine is closed")
        if length < 1:
            raise InvalidArgumentError(f"a completion has at least one token, got {length}")
        if history.length + length > self.speed.capacity:
            raise InvalidArgumentError(
                f"prompt and completion have {history.length + length} tokens, the cache holds {self.speed.capacity}"
            )
        loop = asyncio.get_running_loop()
        self.counters.submitted += 1
        request = _Request(history, length, priority, self.counters.submitted, loop.create_future())
        self._waiting.append(request)
        self._interrupt()
        if self._driver is None or self._driver.done():
            self._driver = loop.create_task(self._drive())
        return Generation(
            request.future,
            cancel=lambda: self._cancel(request),
            promote=lambda: self._promote(request),
            partial=lambda: tokens(self._done(request)),
        )

    def load(self) -> EngineLoad:
        """How busy it is."""
        everyone = [*self._running, *self._reading, *self._waiting]
        return EngineLoad(
            running=len(self._running) + len(self._reading),
            waiting=len(self._waiting),
            speculative=sum(request.priority is Priority.SPECULATIVE for request in everyone),
            cached_tokens=self.cache.used,
            capacity_tokens=self.speed.capacity,
        )

    def close(self) -> None:
        """Cancels what is under way. Idempotent."""
        self._closed = True
        for request in [*self._running, *self._reading, *self._waiting]:
            Generation(request.future).cancel()
        self._running, self._reading, self._waiting = [], [], []
        if self._timer is not None:
            self._timer.cancel()
        if self._driver is not None:
            self._driver.cancel()
            self._driver = None

    async def _drive(self) -> None:
        """Admit, read a chunk or decode a burst, until nobody is left."""
        clock = asyncio.get_running_loop().time
        while self._waiting or self._reading or self._running:
            self._admit()
            began = clock()
            if self._reading:
                await self._read()
            else:
                await self._decode()
            self.counters.busy += clock() - began

    def _admit(self) -> None:
        """Lets the first of the queue in, as far as sequences and cache allow."""
        self._waiting.sort(key=lambda request: request.order)
        while self._waiting and len(self._running) + len(self._reading) < self.speed.max_running:
            request = self._waiting[0]
            found = self.cache.admit(request.history, self._growing())
            if found is None:
                return
            del self._waiting[0]
            # The last token is always computed; what a request that was put back had decoded is read anew.
            unread = max(1, request.history.length - found)
            request.unread = unread + request.done
            self.counters.found += request.history.length - unread
            self._reading.append(request)

    def _growing(self) -> int:
        """Tokens decoded by requests under way, which the cache does not hold as prefixes yet."""
        return sum(request.done for request in self._running)

    async def _read(self) -> None:
        """One step: a chunk of the prompts of those who came in, and a token for each that runs."""
        left = self.speed.chunk
        parts: list[tuple[_Request, int]] = []
        for request in sorted(self._reading, key=lambda request: request.order):
            part = min(left, request.unread)
            if part:
                parts.append((request, part))
                left -= part
        read = self.speed.chunk - left
        seconds = self.speed.read(read)
        if self._running:
            seconds += self.speed.decode(len(self._running), self._contexts())
        self._burst = Burst(asyncio.get_running_loop().time(), max(seconds, 1e-12), 0.0, 1)
        await asyncio.sleep(seconds)
        self.counters.read += read
        batch = list(self._running)
        self._settle(1)
        self._burst = None
        for request, part in parts:
            request.unread -= part
            if request.unread == 0 and request in self._reading:
                self._reading.remove(request)
                self._running.append(request)
                request.done += 1
                self.counters.decoded += 1
                batch.append(request)
        self._finish(batch)

    async def _decode(self) -> None:
        """As many steps as there are to the next completion or change."""
        loop = asyncio.get_running_loop()
        count = len(self._running)
        first = self.speed.decode(count, self._contexts())
        burst = Burst(loop.time(), first, self.speed.step_context * count, self._steps_ahead())
        self._burst, self._wake = burst, loop.create_future()
        self._timer = loop.call_at(burst.start + burst.seconds(burst.steps), _set, self._wake)
        await self._wake
        batch = list(self._running)
        self._settle(burst.steps)
        self._burst = self._wake = self._timer = None
        self._finish(batch)
        self._make_room()

    def _steps_ahead(self) -> int:
        """Steps after which somebody is done, or the cache full."""
        room = (self.speed.capacity - self.cache.used - self._growing()) // len(self._running)
        return max(1, min(room, *(request.length - request.done for request in self._running)))

    def _contexts(self) -> int:
        return sum(request.context for request in self._running)

    def _settle(self, steps: int) -> None:
        """Writes down what those who run have decoded by the end of a step."""
        assert self._burst is not None
        new = steps - self._burst.settled
        self._burst.settled = steps
        for request in self._running:
            request.done = min(request.length, request.done + new)
        self.counters.decoded += new * len(self._running)

    def _finish(self, batch: list[_Request]) -> None:
        for request in batch:
            if request.done >= request.length and request in self._running:
                self._running.remove(request)
                self.cache.release(request.history, request.done)
                if not request.future.done():
                    request.future.set_result(
                        Completion(token_ids=tokens(request.length), logprobs=(), weights_version=0)
                    )

    def _make_room(self) -> None:
        """Puts requests back while what they decode does not fit beside the prefixes in use."""
        while len(self._running) > 1 and not self.cache.shrink(self._growing() + len(self._running)):
            last = max(self._running, key=lambda request: request.order)
            self._running.remove(last)
            self.cache.release(last.history, 0)
            self._waiting.append(last)
            self.counters.preempted += 1

    def _interrupt(self) -> None:
        """Lets a burst end with the step that is under way."""
        burst = self._burst
        if burst is None or self._timer is None or self._wake is None or self._wake.done():
            return
        loop = asyncio.get_running_loop()
        steps = burst.completed(loop.time()) + 1
        if steps < burst.steps:
            burst.steps = steps
            self._timer.cancel()
            self._timer = loop.call_at(burst.start + burst.seconds(steps), _set, self._wake)

    def _done(self, request: _Request) -> int:
        """Tokens decoded by now."""
        burst = self._burst
        if burst is None or request not in self._running:
            return request.done
        return min(request.length, request.done + burst.completed(asyncio.get_running_loop().time()) - burst.settled)

    def _cancel(self, request: _Request) -> None:
        self.counters.cancelled += 1
        done = self._done(request)
        self.counters.decoded += done - request.done
        request.done = done
        for queue in (self._waiting, self._reading, self._running):
            if request in queue:
                queue.remove(request)
                if queue is not self._waiting:
                    self.cache.release(request.history, request.done)
        self._interrupt()

    def _promote(self, request: _Request) -> None:
        request.priority = Priority.COMMITTED


_TOKENS = (0,) * 16_384


def tokens(count: int) -> tuple[int, ...]:
    """That many tokens; which ones does not matter here."""
    return _TOKENS[:count] if count <= len(_TOKENS) else (0,) * count


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
