"""Who calls ``Core.step()``: the event loop between awaits, or a thread. (Or another process: see ``process``.)"""

from __future__ import annotations

import asyncio
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import Protocol

from obsspec_gym.agents.engine.base import EngineLoad
from obsspec_gym.agents.engine.embedded.core import Core
from obsspec_gym.agents.engine.embedded.inbox import Inbox
from obsspec_gym.agents.engine.embedded.requests import Command, Finished, Progress, Submit
from obsspec_gym.errors import EngineError

Change = Callable[[], None]
"""Writes new weights."""


class Driver(Protocol):
    """Runs a core. Nothing starts before the first :meth:`send`."""

    def send(self, command: Command) -> None:
        """Has a command carried out before the next step. Called from a running event loop, or from any thread.

        Raises:
            EngineError: If a request is submitted and whatever ran the core is gone.
        """
        ...

    def load(self) -> EngineLoad:
        """How busy the core is (or recently was)."""
        ...

    def update(self, change: Change, version: int) -> None:
        """Changes the weights between two steps; returns when it is done."""
        ...

    def close(self) -> None:
        """Stops. Idempotent. Delivers nothing more."""
        ...


def guarded_step(core: Core) -> list[Finished]:
    """A step whose failure becomes the failure of the requests that were in it."""
    try:
        return core.step()
    except Exception as error:  # noqa: BLE001 - boundary: whatever breaks in a step is told to everybody who waits
        detail = "".join(traceback.format_exception(error)).strip()
        return core.fail_all(f"a step of the engine failed: {error!r}\n{detail}")


class InlineDriver:
    """Steps run on the event loop, between everything else: nothing is concurrent, everything is reproducible.

    Args:
        core: What to run.
        inbox: Where finished requests go.
        step_seconds: Loop seconds a step takes: its results are delivered so much later. With a loop whose clock is
            virtual, other events happen in between, at no cost.
    """

    def __init__(self, core: Core, inbox: Inbox, step_seconds: float = 0.0) -> None:
        self._core = core
        self._inbox = inbox
        self._step_seconds = step_seconds
        self._commands: deque[Command] = deque()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._handle: asyncio.Handle | None = None
        self._closed = False

    def send(self, command: Command) -> None:
        self._commands.append(command)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # a cancellation after the loop's end: carried out with whatever comes next
        if self._handle is None or self._loop is not loop:  # none, or that of a loop that has ended
            self._loop = loop
            self._handle = loop.call_soon(self._begin)

    def load(self) -> EngineLoad:
        with self._lock:
            self._apply()
            return self._core.load()

    def update(self, change: Change, version: int) -> None:
        with self._lock:
            self._apply()
            change()
            dropped = self._core.update(version)
        self._inbox.deliver(dropped)

    def close(self) -> None:
        self._closed = True
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        with self._lock:
            self._core.fail_all("closed")

    def _apply(self) -> None:
        while self._commands:
            self._core.apply(self._commands.popleft())

    def _begin(self) -> None:
        with self._lock:
            self._apply()
            busy = self._core.busy
            finished = guarded_step(self._core) if busy else []
            progress = self._core.progress() if busy else None
            if busy:
                self._core.took(self._step_seconds)
        if self._closed or self._loop is None or not busy:
            self._handle = None
        elif self._step_seconds > 0:
            self._handle = self._loop.call_later(self._step_seconds, self._end, finished, progress)
        else:
            self._end(finished, progress)

    def _end(self, finished: list[Finished], progress: Progress | None) -> None:
        assert self._loop is not None
        self._handle = self._loop.call_soon(self._begin)
        self._inbox.note(progress)
        self._inbox.deliver(finished)


class ThreadDriver:
    """Steps run in a thread. Right where the process is otherwise quiet: Python code beside it slows it down.

    Args:
        core: What to run.
        inbox: Where finished requests go.
    """

    def __init__(self, core: Core, inbox: Inbox) -> None:
        self._core = core
        self._inbox = inbox
        self._commands: deque[Command | Callable[[], None]] = deque()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._failure: str | None = None
        self._closed = False

    def send(self, command: Command) -> None:
        if self._failure is not None:
            if isinstance(command, Submit):
                raise EngineError(self._failure)
            return
        with self._starting:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="obsspec-engine", daemon=True)
                self._thread.start()
        self._commands.append(command)
        self._wake.set()

    def load(self) -> EngineLoad:
        return self._core.load()

    def update(self, change: Change, version: int) -> None:
        def apply() -> None:
            try:
                change()
                self._inbox.deliver(self._core.update(version))
            except Exception as error:  # noqa: BLE001 - boundary: raised where the update was asked for
                failures.append(error)
            finally:
                done.set()

        done, failures = threading.Event(), list[Exception]()
        if self._thread is None or not self._thread.is_alive():
            apply()
        else:
            self._commands.append(apply)
            self._wake.set()
            while not done.wait(0.1) and self._thread.is_alive():
                pass
        if failures:
            raise failures[0]

    def close(self) -> None:
        with self._starting:
            self._closed = True
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
            self._core.fail_all("closed")

    def _run(self) -> None:
        try:
            while not self._closed:
                self._turn()
        except Exception as error:  # boundary: nobody may wait for a thread that has ended
            self._failure = f"the engine's thread ended unexpectedly: {error!r}"
            self._inbox.fail_all(self._failure)
            raise

    def _turn(self) -> None:
        """Carries out what was asked, then makes a step, or waits."""
        core, commands = self._core, self._commands
        while commands:
            command = commands.popleft()
            if callable(command):
                command()
            else:
                core.apply(command)
        if core.busy:
            began = time.perf_counter()
            finished = guarded_step(core)
            core.took(time.perf_counter() - began)
            self._inbox.note(core.progress())
            if finished:
                self._inbox.deliver(finished)
        else:
            self._wake.wait()
            self._wake.clear()
