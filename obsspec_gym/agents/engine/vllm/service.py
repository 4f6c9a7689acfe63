"""vLLM's asynchronous front end in a thread of its own, and the requests under way there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from obsspec_gym.agents.engine.base import EngineLoad
from obsspec_gym.agents.engine.embedded.inbox import Inbox
from obsspec_gym.agents.engine.embedded.requests import Finished
from obsspec_gym.agents.engine.servers.loop import LoopThread
from obsspec_gym.agents.engine.vllm.metrics import SchedulerMetrics
from obsspec_gym.agents.engine.vllm.requests import Request
from obsspec_gym.errors import EngineError
from obsspec_gym.types import Priority

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

_log = logging.getLogger(__name__)

Change = Callable[["AsyncLLM"], Awaitable[None]]
"""Has vLLM take over new weights."""


class Service:
    """Runs vLLM. Nothing starts before the first request or update.

    vLLM binds itself to one event loop, and its users come with many: it has one of its own here. Public methods may
    be called from any thread; all others run on that loop.

    Args:
        launch: Starts vLLM.
        inbox: Where ended requests go.
        metrics: How busy vLLM is.
    """

    def __init__(self, launch: Callable[[], Awaitable[AsyncLLM]], inbox: Inbox, metrics: SchedulerMetrics) -> None:
        self.version = 0
        self._launch: Callable[[], Awaitable[AsyncLLM]] | None = launch
        self._inbox = inbox
        self._metrics = metrics
        self._loop = LoopThread("obsspec-vllm", self._end)
        self._llm: AsyncLLM | None = None
        self._launching: asyncio.Task[None] | None = None
        self._failure: str | None = None
        self._requests: dict[int, Request] = {}
        self._open = asyncio.Event()  # requests may be given to vLLM
        self._updating = asyncio.Lock()

    def load(self) -> EngineLoad:
        """How busy vLLM is, as its scheduler said after its last step; what it has not seen yet waits."""
        metrics, requests = self._metrics, list(self._requests.values())
        return EngineLoad(
            running=metrics.running,
            waiting=max(metrics.waiting, len(requests) - metrics.running),
            speculative=sum(request.priority is Priority.SPECULATIVE for request in requests),
            cached_tokens=round(metrics.usage * metrics.capacity_tokens),
            capacity_tokens=metrics.capacity_tokens,
        )

    def submit(self, request: Request) -> None:
        """Starts a request.

        Raises:
            EngineError: If vLLM is gone.
        """
        if self._failure is not None:
            raise EngineError(self._failure)
        self._loop.soon(self._begin, request)

    def cancel(self, number: int) -> None:
        """Ends a request; nothing is delivered of it any more."""
        self._loop.soon(self._cancel, number)

    def promote(self, number: int) -> None:
        """Turns a speculative request into a committed one.

        vLLM's queue cannot be told: a request that still waits in it is taken out and put in again where committed
        ones stand. One that has tokens runs on as it is.
        """
        self._loop.soon(self._promote, number)

    def update(self, change: Change) -> None:
        """Changes the weights and drops what was computed with the old ones; returns when that is done.

        Raises:
            EngineError: If vLLM is gone, or could not take them over; it is not used any more then.
        """
        self._loop.run(self._update(change))

    def close(self) -> None:
        """Stops vLLM. Idempotent. Delivers nothing more."""
        self._loop.close()

    async def _start(self) -> None:
        assert self._launch is not None
        try:
            self._llm = await self._launch()
        except Exception as error:  # noqa: BLE001 - boundary: whatever keeps vLLM from starting is told to all who wait
            self._fail(f"vLLM could not be started: {error!r}")
        self._launch = None  # with the first weights
        self._open.set()

    async def _end(self) -> None:
        llm, self._llm = self._llm, None
        if llm is not None:
            llm.shutdown()

    async def _running(self) -> AsyncLLM:
        """vLLM, when requests may be given to it.

        Raises:
            EngineError: If it is gone.
        """
        if self._launching is None:
            self._launching = asyncio.create_task(self._start())
        await self._open.wait()
        if self._failure is not None or self._llm is None:
            raise EngineError(self._failure or "vLLM is not running")
        return self._llm

    def _begin(self, request: Request) -> None:
        self._requests[request.number] = request
        request.begin(asyncio.create_task(self._follow(request)))

    async def _follow(self, request: Request) -> None:
        """One attempt at a request, to its delivery."""
        try:
            llm = await self._running()
            end = Finished(request.number, completion=await request.stream(llm, self.version))
        except Exception as error:  # noqa: BLE001 - boundary: a request's failure is told to whoever awaits it
            end = Finished(request.number, error=self._reason(error))
        self._requests.pop(request.number, None)
        self._inbox.deliver([end])

    def _cancel(self, number: int) -> None:
        request = self._requests.pop(number, None)
        if request is not None:
            request.wanted = False
            request.halt()

    def _promote(self, number: int) -> None:
        request = self._requests.get(number)
        if request is None or request.priority is Priority.COMMITTED:
            return
        request.priority = Priority.COMMITTED
        if not request.tokens and self.load().waiting:
            request.queueing = asyncio.create_task(self._queue_again(request))

    async def _queue_again(self, request: Request) -> None:
        self._again(request, await request.halted())

    def _again(self, request: Request, ended: asyncio.Task[None]) -> None:
        """A new attempt, unless nobody wants it, it is done, or another one has begun."""
        if request.wanted and request.task is ended and ended.cancelled():
            self._begin(request)

    async def _update(self, change: Change) -> None:
        async with self._updating:
            llm = await self._running()
            self._open.clear()
            try:
                halted = await self._halt()
                await self._replace(llm, change)
            finally:
                self._open.set()
            for request, ended in halted:
                self._again(request, ended)

    async def _halt(self) -> list[tuple[Request, asyncio.Task[None]]]:
        """Stops everything; what is speculative ends, the rest is returned with its stopped attempt."""
        requests = list(self._requests.values())
        ended = await asyncio.gather(*[request.halted() for request in requests])
        dropped = [request.number for request in requests if request.priority is Priority.SPECULATIVE]
        for number in dropped:
            self._cancel(number)
        self._inbox.deliver([Finished(number, cancelled=True) for number in dropped])
        return list(zip(requests, ended, strict=True))

    async def _replace(self, llm: AsyncLLM, change: Change) -> None:
        """New weights, and nothing left of the old ones; nothing runs meanwhile."""
        try:
            await change(llm)
            if not await llm.reset_prefix_cache():
                raise EngineError("blocks of the old weights' cache are still in use")
        except Exception as error:  # boundary: half of the weights may be new; raised below, and to all who wait
            self._fail(f"vLLM could not take over new weights: {error!r}")
            raise EngineError(self._failure) from error
        self.version += 1

    def _reason(self, error: Exception) -> str:
        """What to tell of a failure; if vLLM as a whole is gone, nothing is given to it any more."""
        from vllm.v1.engine.exceptions import EngineDeadError

        if isinstance(error, EngineDeadError):
            self._fail("vLLM's process ended unexpectedly")
        return self._failure or f"vLLM failed: {error!r}"

    def _fail(self, failure: str) -> None:
        if self._failure is None:
            self._failure = failure
            _log.error("%s", failure)
        self._inbox.fail_all(self._failure)
