"""A command under way in a shell: its output piece by piece, then what became of it."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import TypeVar

from obsspec_gym.envs.sandbox.buffer import OutputBuffer
from obsspec_gym.errors import SandboxError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ShellResult:
    """What a command did; ``cwd`` is None when the shell ended, ``exit_code`` when it was stopped."""

    output: bytes
    output_bytes: int
    exit_code: int | None
    cwd: str | None
    timed_out: bool


@dataclass(frozen=True, slots=True)
class End:
    """How a command ended: a :class:`ShellResult` without the output."""

    exit_code: int | None
    cwd: str | None
    timed_out: bool


class Deadline:
    """A moment that can be brought forward.

    Args:
        seconds: From now.
    """

    def __init__(self, seconds: float) -> None:
        self._at = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds until then; negative afterwards."""
        return self._at - time.monotonic()

    def expire(self) -> None:
        """Makes it now."""
        self._at = min(self._at, time.monotonic())


class Execution:
    """One command under way. Iterating gives its output as it comes, never an empty piece; nothing else moves it on.

    Args:
        steps: Yields output, and returns how the command ended.
        deadline: When the command is stopped.
        limit: Bytes of output that are kept for the result.
    """

    def __init__(self, steps: Generator[bytes, None, End], deadline: Deadline, limit: int) -> None:
        self._steps = steps
        self._deadline = deadline
        self._output = OutputBuffer(limit)
        self._result: ShellResult | None = None

    def __iter__(self) -> Execution:
        return self

    def __next__(self) -> bytes:
        while True:
            try:
                piece = next(self._steps)
            except StopIteration as stop:
                if stop.value is not None:  # None: an exception ended the steps before
                    end: End = stop.value
                    output = self._output
                    self._result = ShellResult(bytes(output), output.total, end.exit_code, end.cwd, end.timed_out)
                raise StopIteration from None
            if piece:
                self._output.feed(piece)
                return piece

    def expire(self) -> None:
        """Brings its timeout forward to this moment; iterating on then stops it."""
        self._deadline.expire()

    def finish(self) -> ShellResult:
        """Waits for its end.

        Raises:
            SandboxError: If an exception came out of an earlier step: where the shell is now, nobody knows.
        """
        for _ in self:
            pass
        if self._result is None:
            raise SandboxError("the command was interrupted before its end")
        return self._result


def finish(steps: Generator[bytes, None, T]) -> T:
    """Runs a generator to its end for what it returns."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            value: T = end.value
            return value


def until_mark(pieces: Iterable[bytes], mark: bytes) -> Generator[bytes, None, bytes | None]:
    """Passes on what comes before a mark, wherever pieces are cut; returns what came after it in its last piece.

    Only what may be the beginning of the mark is held back, until the next bytes tell. None is returned, and
    everything has been passed on, when the pieces end without it.

    Example:
        >>> steps = until_mark([b"a<", b"b<mar", b"k>c"], b"<mark>")
        >>> [piece for piece in steps if piece]
        [b'a', b'<b']
    """
    held = b""
    for piece in pieces:
        before, found, after = (held + piece).partition(mark)
        if found:
            yield before
            return after
        length = next(n for n in range(min(len(before), len(mark) - 1), -1, -1) if before.endswith(mark[:n]))
        held = before[len(before) - length :]
        yield before[: len(before) - length]
    yield held
    return None
