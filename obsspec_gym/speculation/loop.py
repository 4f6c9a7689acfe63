"""An event loop on a thread of its own, for callers that live outside of one."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from obsspec_gym.errors import ClosedError

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for synchronous callers. Starts with the first of them and ends in :meth:`close`.

    Example:
        >>> thread = LoopThread()
        >>> thread.run(asyncio.sleep(0, result="done"))
        'done'
        >>> thread.close()
    """

    def __init__(self, name: str = "obsspec-loop") -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self.closed = False
        self._finalizer: weakref.finalize[Any, Any] | None = None

    @property
    def started(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Runs a coroutine without waiting for it; cancelling the future cancels it.

        Raises:
            ClosedError: After :meth:`close`.
        """
        if self.closed:
            work.close()
            raise ClosedError("the event loop's thread is closed")
        return asyncio.run_coroutine_threadsafe(work, self._running_loop())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine to its end and returns its result; a Ctrl-C meanwhile cancels it.

        Raises:
            ClosedError: After :meth:`close`.
        """
        future = self.start(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=_serve, args=(loop,), name=self._name, daemon=True)
            self._finalizer = weakref.finalize(self, _stop, loop, self._thread)
            self._thread.start()
            self._loop = loop
        return self._loop

    def close(self) -> None:
        """Cancels what is under way and ends the thread. Idempotent."""
        self.closed = True
        if self._finalizer is not None:
            self._finalizer()


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=5))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(loop.stop)
    if thread is not threading.current_thread():
        thread.join(10)
