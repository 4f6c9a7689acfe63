"""What a command prints while it runs."""

from __future__ import annotations

import codecs
import contextlib
import weakref
from collections.abc import Callable
from types import TracebackType

from obsspec_gym.envs.sandbox.base import CommandResult
from obsspec_gym.errors import ClosedError, InvalidArgumentError, SandboxError


class CommandStream:
    """A command's output as text, piece by piece as it comes; then its result.

    Output is decoded as UTF-8, with a replacement character for what is not UTF-8. Pieces are never empty and never
    end within a character; where they are cut changes nothing about the whole. Nothing is left out, whereas the
    result keeps both ends of a long output only.

    :meth:`close`, the end of a ``with`` block, and letting go of the stream stop a command that still runs, as its
    timeout would. Like its sandbox, a stream is for one thread at a time.

    Args:
        read: The next bytes, or the result when there are no more.
        stop: Stops the command and returns the result.
        abandon: Stops the command if that is still needed; called when nobody refers to this any more.

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

    def __init__(
        self,
        read: Callable[[], bytes | CommandResult],
        stop: Callable[[], CommandResult],
        abandon: Callable[[], None],
    ) -> None:
        self._read = read
        self._stop = stop
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._result: CommandResult | None = None
        self._finalizer = weakref.finalize(self, abandon)
        self._finalizer.atexit = False  # sandboxes end what is left then

    def __iter__(self) -> CommandStream:
        return self

    def __next__(self) -> str:
        while self._result is None:
            got = self._read()
            if isinstance(got, CommandResult):
                self._settle(got)
                text = self._decoder.decode(b"", True)
            else:
                text = self._decoder.decode(got)
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
        if self._result is None:
            raise InvalidArgumentError("the command has no result yet: read to the end, finish() or close() first")
        return self._result

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
        if self._result is None:
            with contextlib.suppress(SandboxError, ClosedError):
                self._settle(self._stop())

    def _settle(self, result: CommandResult) -> None:
        self._result = result
        self._finalizer.detach()
