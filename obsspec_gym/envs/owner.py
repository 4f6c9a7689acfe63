"""Who sees to it that no sandbox outlives its environment."""

from __future__ import annotations

import threading
from collections.abc import Callable

from obsspec_gym.envs.sandbox.base import Sandbox
from obsspec_gym.errors import ClosedError


class SandboxOwner:
    """The one sandbox an environment has at a time, released whoever closes the environment, and when.

    One thread starts and releases sandboxes; :meth:`close` may come from any other at any moment, and ends what the
    first one is waiting for: a command, a start.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._sandbox: Sandbox | None = None

    def require_open(self, cause: Exception | None = None) -> None:
        """Raises :class:`~obsspec_gym.errors.ClosedError` after :meth:`close`."""
        if self._closed.is_set():
            raise ClosedError("the environment is closed" + (": it was in use" if cause else "")) from cause

    def start(self, make: Callable[[], Sandbox]) -> Sandbox:
        """Makes a sandbox and starts it; after an error or an interrupt nothing of it is left."""
        sandbox = make()
        try:
            with self._lock:
                self.require_open()
                self._sandbox = sandbox  # before it starts: whoever closes the environment ends that as well
            sandbox.start()
            self.require_open()
        except BaseException as error:
            with self._lock:
                self._sandbox = None
            sandbox.close()
            if isinstance(error, Exception):
                self.require_open(error)  # what went wrong is that it was closed
            raise
        return sandbox

    def wait(self, seconds: float) -> None:
        """Waits; :meth:`close` ends it with :class:`~obsspec_gym.errors.ClosedError`."""
        if seconds > 0:
            self._closed.wait(seconds)
            self.require_open()

    def release(self) -> None:
        """Closes the sandbox of the moment, if there is one."""
        with self._lock:
            sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            sandbox.close()

    def close(self) -> None:
        """Closes the sandbox and lets no other start. Idempotent."""
        with self._lock:
            self._closed.set()
        self.release()
