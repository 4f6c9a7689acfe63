"""What a command prints while it runs."""

from __future__ import annotations

import codecs
import contextlib
import weakref
from types import TracebackType
from typing import Protocol

from obsspec_gym.envs.sandbox.base import CommandResult
from obsspec_gym.errors import ClosedError, InvalidArgumentError, SandboxError


class StreamedCommand(Protocol):
    """A command under way, as its sandbox sees it."""

    @property
    def result(self) -> CommandResult | None:
        """What it did, once it has ended."""
        ...

    def read(self) -> bytes | None:
        """The next bytes it prints; None when it has ended, and :attr:`result` is there."""
        ...

    def stop(self) -> None:
        """Stops it as its timeout would; :attr:`result` is there then."""
        ...

    def abandon(self) -> None:
        """Stops it if that is still needed; never raises, and never waits for another thread."""
        ...


class CommandStream:
    """A command's output as text, piece by piece as it comes; then its result.

    Output is decoded as UTF-8, with a replacement character for what is not UTF-8. Pieces are never empty and never
    end within a character; where they are cut changes nothing about the whole. Nothing is left out, whereas the
    result keeps both ends of a long output only.

    :meth:`close`, the end of a ``with`` block, and letting go of the stream stop a command that still runs, as its
    timeout would. Like its sandbox, a stream is for one thread at a time.

    Args:
        command: The command; does not refer to this.

    Example:
        >>> from obsspec_gym.envs.sandbox import make_sandbox
        >>> sandbox = make_sandbox("bubblewrap")
        >>> sandbox.start()
        >>> with sandbox.stream("echo first; sleep 0.1; echo last") as stream:
        ...     for text in stream:
        ...         print(text, end="")
        first
        last
        >>> stream.result.exit_code
        0
        >>> sandbox.close()
    """

    def __init__(self, command: StreamedCommand) -> None:
        self._command = command
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._ended = False
        self._finalizer = weakref.finalize(self, command.abandon)
        self._finalizer.atexit = False  # sandboxes end what is left then

    def __iter__(self) -> CommandStream:
        return self

    def __next__(self) -> str:
        while not self._ended:
            piece = self._command.read()
            self._ended = piece is None
            text = self._decoder.decode(piece or b"", self._ended)
            if text:
                return text
        raise StopIteration

    def __enter__(self) -> CommandStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def result(self) -> CommandResult:
        """What the command did.

        Raises:
            InvalidArgumentError: If that is not known yet.
        """
        if (result := self._command.result) is None:
            raise InvalidArgumentError("the command has no result yet: read to the end, finish() or close() first")
        return result

    def finish(self) -> CommandResult:
        """Waits for the end of the command, passing over its output; returns its result.

        Raises:
            SandboxError: If the sandbox broke.
            ClosedError: If it is closed.
        """
        for _ in self:
            pass
        return self.result

    def close(self) -> None:
        """Stops the command if it still runs. Idempotent; a sandbox that is closed or broken is no error here."""
        self._ended = True
        with contextlib.suppress(SandboxError, ClosedError):
            self._command.stop()
