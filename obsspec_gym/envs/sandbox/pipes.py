"""Pipes between this process and a sandbox's shells."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
from dataclasses import dataclass

from obsspec_gym.envs.shell import ShellPipes

_LOWEST_PASSED = 300  # clear of the descriptors that the shells use themselves


class PipeSet:
    """Every descriptor of ours, so that none is forgotten."""

    def __init__(self) -> None:
        self._open: set[int] = set()

    def shell(self, *, passed: bool = False) -> tuple[ShellPipes, tuple[int, int, int]]:
        """Pipes for one shell: our ends, and its script, output and status ends.

        Script and status are sockets of one direction each: other than a pipe, nobody can open one by its name in
        /proc. The output must be a pipe: programs open theirs by name (``/dev/stderr``), whoever they run as.

        Args:
            passed: Whether the shell's ends keep their numbers in the process that inherits them, which then
                must be high.
        """
        output = self._pipe()
        os.fchmod(output[1], 0o666)
        script, status = self._socket(), self._socket()
        for fd in (script[1], output[0], status[0]):
            os.set_blocking(fd, False)
        theirs = (script[0], output[1], status[1])
        if passed:
            theirs = (self._raise(theirs[0]), self._raise(theirs[1]), self._raise(theirs[2]))
        return ShellPipes(script[1], output[0], status[0]), theirs

    def intake(self) -> Intake:
        """A pipe into a process that inherits its reading end."""
        theirs, ours = self._pipe()
        os.set_blocking(ours, False)
        return Intake(self, ours, self._raise(theirs))

    def close(self, *fds: int) -> None:
        """Closes some."""
        for fd in fds:
            self._open.discard(fd)
            os.close(fd)

    def close_all(self) -> None:
        """Closes all that are left. Idempotent."""
        while self._open:
            with contextlib.suppress(OSError):
                os.close(self._open.pop())

    def _pipe(self) -> tuple[int, int]:
        ends = os.pipe()
        self._open.update(ends)
        return ends

    def _socket(self) -> tuple[int, int]:
        """As :meth:`_pipe`: the end that reads, and the one that writes."""
        reader, writer = socket.socketpair()
        with reader, writer:
            reader.shutdown(socket.SHUT_WR)
            writer.shutdown(socket.SHUT_RD)
            ends = reader.detach(), writer.detach()
            self._open.update(ends)
        return ends

    def _raise(self, fd: int) -> int:
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _LOWEST_PASSED)
        self._open.add(high)
        self.close(fd)
        return high


@dataclass(frozen=True, slots=True)
class Intake:
    """A pipe into a sandbox: our end, non-blocking, and the one that its supervisor inherits, under its number."""

    pipes: PipeSet
    ours: int
    theirs: int

    def close(self) -> None:
        """Closes our end."""
        self.pipes.close(self.ours)


def drain(*fds: int) -> None:
    """Throws away what is in pipes that nobody else reads or writes any more."""
    for fd in fds:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        while any(event & select.POLLIN for _, event in poll.poll(0)):
            if not os.read(fd, 65_536):
                break
