"""The streams of a process in a container: one connection to the daemon that carries three."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Container

from obsspec_gym.errors import SandboxError

_CHUNK = 65_536
_HEADER = 8
_OUTPUT, _STATUS = 1, 2


class FramedPipes:
    """The three streams of one process over one connection, in the place of three pipes.

    The daemon sends output and status (the process's standard output and error) as frames with a header of eight
    bytes: the stream's number, three zeros, the length.

    Args:
        connection: Owned from now on; non-blocking.

    Attributes:
        script: Descriptor to write to.
        output: Descriptor that is readable when there may be output or status.
        status: The same.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._frames = bytearray()
        self._left = 0
        self._stream = _OUTPUT
        self._waiting = {_OUTPUT: bytearray(), _STATUS: bytearray()}
        self._ended = False
        self._closed = False
        self.script = connection.fileno()
        with contextlib.ExitStack() as undo:  # where descriptors run out, none is left behind
            undo.callback(connection.close)
            self._end = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            undo.callback(os.close, self._end)
            # A number of its own, under which nothing more is to be read once the connection has ended.
            self.output = self.status = os.dup(self.script)
            undo.pop_all()

    def fileno(self) -> int:
        """A descriptor that is readable once the connection has ended."""
        return self._end

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._closed

    @property
    def ended(self) -> bool:
        """Whether the connection has ended; looks once more."""
        if not self._ended:
            self._fill()
        return self._ended

    def receive(self, ready: Container[int]) -> tuple[bytes, bytes]:
        """What has come of output and status."""
        self._fill()
        output, status = (bytes(self._waiting[stream]) for stream in (_OUTPUT, _STATUS))
        for waiting in self._waiting.values():
            waiting.clear()
        return output, status

    def read(self, deadline: float) -> bytes:
        """The next output, waited for until a moment of the monotonic clock.

        Raises:
            SandboxError: If the connection ends, or nothing comes.
        """
        while not (output := self.receive(())[0]):
            if self._ended:
                raise SandboxError("the container is gone, or the connection to it")
            self._poll(self.output, select.POLLIN, deadline)
        return output

    def await_more(self, deadline: float) -> None:
        """Waits until something may have come.

        Raises:
            SandboxError: If nothing does.
        """
        self._poll(self.output, select.POLLIN, deadline)

    def send(self, data: bytes, deadline: float) -> None:
        """Writes everything, until a moment of the monotonic clock.

        Raises:
            SandboxError: If the connection ends, or nobody takes it.
        """
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self.script, rest) :]
            except BlockingIOError:
                self._poll(self.script, select.POLLOUT, deadline)
            except OSError:
                raise SandboxError("the container is gone, or the connection to it") from None

    def wait(self, seconds: float) -> None:
        """Waits for the end of the connection, keeping what comes.

        Raises:
            SandboxError: If the end does not come.
        """
        deadline = time.monotonic() + seconds
        while not self.ended:
            self._poll(self.output, select.POLLIN, deadline)

    def hang_up(self) -> None:
        """Ends the connection, and whoever waits for it; closes nothing: callable from any thread."""
        try:
            self._connection.shutdown(socket.SHUT_RDWR)
        except OSError:  # it has ended, or is closed
            return

    def close(self) -> None:
        """Closes it. Idempotent."""
        if not self._closed:
            self._closed = self._ended = True
            self._connection.close()
            os.close(self.output)
            os.close(self._end)

    def _poll(self, fd: int, event: int, deadline: float) -> None:
        poll = select.poll()
        poll.register(fd, event)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise SandboxError("the container, or the daemon that runs it, does not answer")

    def _fill(self) -> None:
        """Takes one piece of what has come, if something has."""
        if self._ended:
            return
        try:
            data = os.read(self.output, _CHUNK)
        except BlockingIOError:
            return
        except OSError:  # reset: the daemon is gone
            data = b""
        if not data:
            self._finish()
            return
        self._frames += data
        self._parse()

    def _parse(self) -> None:
        while self._frames:
            if not self._left:
                if len(self._frames) < _HEADER:
                    return
                self._stream, self._left = self._frames[0], int.from_bytes(self._frames[4:_HEADER], "big")
                if self._stream not in self._waiting or any(self._frames[1:4]):
                    raise SandboxError("the connection to the container broke: no frame begins where one should")
                del self._frames[:_HEADER]
            taken = self._frames[: self._left]
            self._waiting[self._stream] += taken
            self._left -= len(taken)
            del self._frames[: len(taken)]

    def _finish(self) -> None:
        self._ended = True
        # A connection at its end is readable for ever, with nothing to read; what takes its number never is.
        silent = os.eventfd(0, os.EFD_CLOEXEC)
        os.dup2(silent, self.output, inheritable=False)
        os.close(silent)
        os.eventfd_write(self._end, 1)


def pass_on(source: FramedPipes, target: FramedPipes, deadline: float) -> bytes:
    """Starts two processes that wait for a line, and passes the output of one on to the other as it comes.

    Returns:
        What the first had to say on its status stream.

    Raises:
        SandboxError: If they do not get on.
    """
    for pipes in (source, target):
        pipes.send(b"\n", deadline)
    said = b""
    while True:
        ended = source.ended
        output, status = source.receive(set())
        said += status
        target.send(output, deadline)
        if not output and not status:
            if ended:
                return said
            source.await_more(deadline)
