"""An event loop in a thread of its own, for clients that outlive the event loops of those who use them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar, TypeVarTuple

from obsspec_gym.errors import ClosedError

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class LoopThread:
    """Starts with its first use; ends with :meth:`close`, which cancels what still runs.

    Args:
        name: The thread's.
        at_end: Closes what lives on the loop.
    """

    def __init__(self, name: str, at_end: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._name = name
        self._at_end = at_end
        self._lock = threading.RLock()  # a finalizer may close it at any time, in any thread
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._closed = False

    def soon(self, callback: Callable[[*Ts], object], *arguments: *Ts) -> bool:
        """Calls a function on the loop, or does nothing after :meth:`close`; returns whether it will be called."""
        loop = self._running()
        if loop is None:
            return False
        try:
            loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:  # closed at this very moment
            return False
        return True

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the loop, and waits for it.

        Raises:
            ClosedError: If the thread has ended, or ends meanwhile.
        """
        loop = self._running()
        if loop is None:
            work.close()
            raise ClosedError("this engine is closed")
        try:
            return asyncio.run_coroutine_threadsafe(work, loop).result()
        except CancelledError as error:
            raise ClosedError("this engine was closed meanwhile") from error

    def close(self) -> None:
        """Has everything closed, and waits for the thread. Idempotent."""
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
        if thread is not None:
            assert self._loop is not None
            assert self._stop is not None
            self._loop.call_soon_threadsafe(self._stop.set)
            if thread is not threading.current_thread():
                thread.join()

    def _running(self) -> asyncio.AbstractEventLoop | None:
        with self._lock:
            if self._thread is None and not self._closed:
                ready: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
                self._thread = threading.Thread(target=_live, args=(ready, self._at_end), name=self._name, daemon=True)
                self._thread.start()
                self._loop, self._stop = ready.result()
            return None if self._closed else self._loop


def _live(
    ready: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]], at_end: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    async def main() -> None:
        stop = asyncio.Event()
        ready.set_result((asyncio.get_running_loop(), stop))
        await stop.wait()
        await at_end()

    asyncio.run(main())
