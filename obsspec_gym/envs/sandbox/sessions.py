"""The processes of a sandbox as their shells' protocol sees them."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable
from typing import Protocol

from obsspec_gym.envs.sandbox.processes import (
    ProcessHandle,
    children,
    descendants,
    family,
    send_signal,
    with_environment,
)
from obsspec_gym.envs.shell import ShellProcess
from obsspec_gym.errors import SandboxError

_END_SECONDS = 10.0
_INTERRUPT = (signal.SIGURG, signal.SIGINT, signal.SIGCONT)


class Supervisor:
    """The supervisor's own process: ours to start and to end; nothing it runs is ever interrupted.

    Args:
        pid: The process that was started; the supervisor is this or its only child.
    """

    def __init__(self, pid: int) -> None:
        self._handle = ProcessHandle(pid)
        self._pid = pid

    def locate(self, pid: int) -> None:
        """Says which process the supervisor itself is."""
        self._pid = pid

    def sweep(self) -> None:
        """Kills everything that it has running."""
        send_signal(descendants(self._pid), signal.SIGKILL)

    def fileno(self) -> int:
        """A descriptor that is readable once it has ended."""
        return self._handle.fileno()

    def running(self) -> set[int]:
        """Nothing: it is never interrupted."""
        return set()

    def drop(self, pids: set[int]) -> None:
        """Does nothing."""

    def interrupt(self, pids: set[int]) -> None:
        """Does nothing."""

    def kill(self, pids: set[int]) -> None:
        """Does nothing."""

    def end(self) -> int:
        """Kills it and everything below it."""
        send_signal(descendants(self._handle.pid), signal.SIGKILL)
        self._handle.kill()
        return 128 + signal.SIGKILL

    def close(self) -> None:
        """Lets go of it."""
        self._handle.close()


class AgentSession(ShellProcess, Protocol):
    """An agent's shell and all it started, however they are reached."""

    @property
    def ended(self) -> bool:
        """Whether the shell has ended."""
        ...

    def end_processes(self) -> None:
        """Ends the shell and everything it started, and waits until all of it is gone."""
        ...

    def close(self) -> None:
        """Lets go of them."""
        ...


class Session:
    """An agent's shell and all it started.

    Args:
        pid: The process that the supervisor started.
        depth: How many processes there are from it down to the shell: 0 if it is the shell, 2 for bubblewrap
            (monitor, first process of the namespace, shell).
        reap: Returns the exit status of ``pid`` when it has ended.
        mark: An environment entry by which processes are found that left the tree, where nothing keeps them in it.

    Raises:
        SandboxError: If the process is gone already.
    """

    def __init__(self, pid: int, depth: int, reap: Callable[[int], int], mark: bytes = b"") -> None:
        try:
            self._monitor = ProcessHandle(pid)
        except ProcessLookupError:
            raise SandboxError("the sandbox's shell ended before it could be used") from None
        self._chain = [self._monitor]
        self._depth = depth
        self._reap = reap
        self._mark = mark

    def settle(self) -> None:
        """Finds the shell; to be called when it has answered."""
        for _ in range(self._depth):
            below = children(self._chain[-1].pid)
            if not below:
                raise SandboxError("the sandbox's shell ended before it could be used")
            self._chain.append(ProcessHandle(below[0]))

    @property
    def ended(self) -> bool:
        """Whether the shell has ended."""
        return self._monitor.ended

    def fileno(self) -> int:
        """A descriptor that is readable once the shell has ended."""
        return self._monitor.fileno()

    def running(self) -> set[int]:
        """What the shell started and what that started, wherever in the tree it went."""
        return descendants(self._root) - {self._chain[-1].pid}

    def drop(self, pids: set[int]) -> None:
        """SIGURG to the shell, SIGINT to the processes."""
        # The shell first: what it waits for may end at once.
        self._chain[-1].send(signal.SIGURG, signal.SIGCONT)
        send_signal(self._parents_first(pids), signal.SIGINT, signal.SIGCONT)

    def interrupt(self, pids: set[int]) -> None:
        """SIGURG and SIGINT to the shell, SIGINT to the processes."""
        self._chain[-1].send(*_INTERRUPT)
        send_signal(self._parents_first(pids), signal.SIGINT, signal.SIGCONT)

    def kill(self, pids: set[int]) -> None:
        """SIGURG and SIGINT to the shell, SIGKILL to the processes."""
        self._chain[-1].send(*_INTERRUPT)
        send_signal(self._parents_first(pids), signal.SIGKILL)

    @property
    def _root(self) -> int:
        """The process below which the shell, and all that it started and left, are found."""
        return (self._chain[-2] if self._depth else self._monitor).pid

    def _parents_first(self, pids: set[int]) -> list[int]:
        """The order in which nothing that is about to end sees its child end, and acts on it or tells of it."""
        return [pid for pid in family(self._root) if pid in pids]

    def end(self) -> int:
        """Ends the shell and everything it started; returns the shell's exit status."""
        self.end_processes()
        return self._reap(self._monitor.pid)

    def end_processes(self) -> None:
        """Ends the shell and everything it started, and waits until all of it is gone.

        The first process of a namespace takes all others with it. Without a namespace, what has left the tree is
        looked for until nothing more is found.
        """
        deadline = time.monotonic() + _END_SECONDS
        if len(self._chain) > 1:
            self._chain[1].kill()
        while time.monotonic() < deadline:
            rest = descendants(self._monitor.pid) | (with_environment(self._mark) if self._mark else set())
            send_signal(rest, signal.SIGKILL)
            self._monitor.kill()
            if not rest and self._monitor.wait(0.05):
                break
        for process in self._chain:
            process.wait(max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        """Lets go of the processes."""
        for process in self._chain:
            with contextlib.suppress(OSError):
                process.close()
