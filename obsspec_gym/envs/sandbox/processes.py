"""Finding and signalling processes by their place in the tree, through /proc (Linux)."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterable
from pathlib import Path


def children(pid: int) -> list[int]:
    """The children of a process, oldest first; none when it is gone."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            # Before every command: pathlib would take longer than the command.
            name = f"/proc/{pid}/task/{task}/children"
            with contextlib.suppress(OSError), open(name, "rb", buffering=0) as file:
                found += map(int, file.read().split())
    return found


def family(pid: int) -> list[int]:
    """Every process below ``pid``, without itself; parents before their children."""
    found: dict[int, None] = {}
    open_ = [pid]
    while open_:
        new = [child for child in children(open_.pop()) if child not in found]
        found.update(dict.fromkeys(new))
        open_ += new
    return list(found)


def descendants(pid: int) -> set[int]:
    """Every process below ``pid``, without itself."""
    return set(family(pid))


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since the machine did; None when it has ended.

    With its number it names a process for good: numbers alone are used again.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    state, *fields = stat.rpartition(")")[2].split()
    return None if state in ("Z", "X") else int(fields[18])


def with_environment(entry: bytes) -> set[int]:
    """Every process we may look at that was started with ``entry`` (``NAME=value``) in its environment."""
    found: set[int] = set()
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                if entry in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                    found.add(int(name))
    return found


def send_signal(pids: Iterable[int], *signals: signal.Signals) -> None:
    """Sends signals to processes; those that are gone are passed over."""
    for pid in pids:
        for number in signals:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


class ProcessHandle:
    """One process that is not our child, held so that its end can be waited for and its number not be reused.

    Args:
        pid: A process that is alive.

    Raises:
        ProcessLookupError: If it is gone.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._fd = os.pidfd_open(pid)

    def fileno(self) -> int:
        """A descriptor that becomes readable when the process ends."""
        return self._fd

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self.wait(0.0)

    def kill(self) -> None:
        """Sends SIGKILL; nothing happens when it has ended."""
        self.send(signal.SIGKILL)

    def send(self, *signals: signal.Signals) -> None:
        """Sends signals, in this order; nothing happens when it has ended."""
        with contextlib.suppress(ProcessLookupError):
            for number in signals:
                signal.pidfd_send_signal(self._fd, number)

    def wait(self, seconds: float) -> bool:
        """Waits for its end at most so long; whether it has ended."""
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        deadline = time.monotonic() + seconds
        return bool(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))

    def close(self) -> None:
        """Lets go of it. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
