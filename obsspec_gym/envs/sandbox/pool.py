"""Sandboxes started ahead, so that nobody waits for them."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from types import TracebackType

from obsspec_gym.envs.sandbox.base import Sandbox
from obsspec_gym.errors import ClosedError, InvalidArgumentError, SandboxError

_CHECK_SECONDS = 5.0


class SandboxPool:
    """Keeps started sandboxes ready; a thread of its own replaces each that is taken.

    The thread starts at the first :meth:`acquire`. Whoever acquires a sandbox owns it and closes it; it is used once.
    :meth:`acquire` can stand wherever a callable that makes sandboxes is expected.

    Args:
        factory: Makes a sandbox; what it starts is the pool's business.
        size: How many are kept ready.

    Raises:
        InvalidArgumentError: If ``size`` is below 1.

    Example:
        >>> from obsspec_gym.envs.sandbox import make_sandbox
        >>> with SandboxPool(make_sandbox, size=2) as pool:
        ...     sandbox = pool.acquire()
        ...     print(sandbox.run("echo ready").output)
        ...     sandbox.close()
        b'ready\\n'
    """

    def __init__(self, factory: Callable[[], Sandbox], size: int = 1) -> None:
        if size < 1:
            raise InvalidArgumentError(f"size must be at least 1, got {size}")
        self._stock = _Stock(factory, size)
        self._finalizer = weakref.finalize(self, self._stock.close)

    def acquire(self) -> Sandbox:
        """A started sandbox that nobody has used; waits for one where none is ready.

        Raises:
            SandboxUnavailableError, SandboxError: As starting one does; the next call tries anew.
            ClosedError: If the pool is closed, or was while this waited.
        """
        while True:
            sandbox = self._stock.take()
            try:
                sandbox.run(":", _CHECK_SECONDS)
            except (SandboxError, ClosedError):  # it broke while it waited
                sandbox.close()
            except BaseException:
                sandbox.close()
                raise
            else:
                return sandbox

    def close(self) -> None:
        """Closes all that nobody has taken and ends the thread. Idempotent, from any thread."""
        self._finalizer()

    def __enter__(self) -> SandboxPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class _Stock:
    """What is ready and who refills it; knows nothing of the pool, so that a finaliser and a thread can hold it."""

    def __init__(self, factory: Callable[[], Sandbox], size: int) -> None:
        self._factory = factory
        self._size = size
        self._changed = threading.Condition()
        self._ready: deque[Sandbox] = deque()
        self._starting: Sandbox | None = None
        self._failure: Exception | None = None
        self._waiting = 0
        self._closed = False
        self._thread: threading.Thread | None = None

    def take(self) -> Sandbox:
        with self._changed:
            self._waiting += 1
            try:
                if self._thread is None and not self._closed:
                    self._thread = threading.Thread(target=self._refill, name="obsspec_gym sandbox pool", daemon=True)
                    self._thread.start()
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._ready or self._failure or self._closed)
                if self._closed:
                    raise ClosedError("the pool of sandboxes is closed")
                if self._ready:
                    return self._ready.popleft()
                assert self._failure is not None
                failure, self._failure = self._failure, None
                raise failure
            finally:
                self._waiting -= 1
                self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            starting, left = self._starting, list(self._ready)
            self._ready.clear()
            self._changed.notify_all()
        if starting is not None:
            starting.close()  # which ends its start
        for sandbox in left:
            sandbox.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _refill(self) -> None:
        while self._needed():
            try:
                sandbox = self._factory()
                with self._changed:
                    self._starting = sandbox
                self._start(sandbox)
            except Exception as error:  # noqa: BLE001 - whoever acquires is told
                with self._changed:
                    self._failure = error
                    self._starting = None
                    self._changed.notify_all()

    def _needed(self) -> bool:
        """Waits until a sandbox is wanted; False when the pool is closed.

        After a failure nothing more is tried until somebody has been told and asks again.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or (self._failure is None and len(self._ready) < self._size + self._waiting)
            )
            return not self._closed

    def _start(self, sandbox: Sandbox) -> None:
        try:
            sandbox.start()
        except BaseException:
            sandbox.close()
            raise
        with self._changed:
            self._starting = None
            closed = self._closed
            if not closed:
                self._ready.append(sandbox)
                self._changed.notify_all()
        if closed:
            sandbox.close()
