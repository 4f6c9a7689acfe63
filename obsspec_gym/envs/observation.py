"""How what a command did becomes the one text that policies and world models read."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from typing import ClassVar

from obsspec_gym.envs.canonical import canonical
from obsspec_gym.envs.sandbox.base import CommandResult
from obsspec_gym.errors import InvalidArgumentError

_STATUS = re.compile(r"\[(exit \d+|timeout after [\d.e+-]+ s)(, shell restarted)?\] .+")
_ELISION = re.compile(r"^\[\.\.\. ([1-9]\d*) bytes elided \.\.\.\]\n", re.MULTILINE)
_REPLACEMENT = "\ufffd"
_LONGEST = 4  # bytes of the longest UTF-8 character
_LONGEST_PATH = 4_096
_KEPT_OF_PATH = 1_000


class _Version:
    """Which version of the format a class, or an instance of it, writes."""

    def __get__(self, instance: ObservationFormat | None, owner: type[ObservationFormat]) -> int:
        return 2 if instance is not None and instance.canonical else 1


@dataclass(frozen=True, slots=True)
class ObservationFormat:
    """Format version 1 of terminal observations. Frozen: a shipped model names the version it was trained on.

    The command's output (stdout and stderr merged, decoded as UTF-8, a replacement character for what is not
    UTF-8), a newline if it does not end with one, and a last line with exit status and working directory::

        Makefile  src
        [exit 0] ~/project

    Of outputs longer than ``limit`` bytes the first and last ``limit // 2`` bytes are kept, cut at character
    boundaries, with a line between them that counts the bytes left out. The status line comes on top.

    Version 2 is the canonical variant: in what is shown, dates, times, durations, hashes, process numbers and made-up
    file names are masked (:mod:`obsspec_gym.envs.canonical`), so that two runs of the same commands look the same.
    It is not for tasks that ask for such a thing.

    Attributes:
        limit: Bytes of output (as printed, before decoding) that are shown at most.
        canonical: Whether to mask: version 2.

    Example:
        >>> result = CommandResult(b"hello", 5, 0, "/home/agent/src", 0.01)
        >>> print(ObservationFormat().format(result, home="/home/agent", timeout=30.0))
        hello
        [exit 0] ~/src
    """

    limit: int = 10_000
    canonical: bool = False

    version: ClassVar[_Version] = _Version()

    def __post_init__(self) -> None:
        if self.limit < 2 * _LONGEST:
            raise InvalidArgumentError(f"limit must be at least {2 * _LONGEST} bytes, got {self.limit}")

    def format(self, result: CommandResult, home: str, timeout: float) -> str:
        """The final observation.

        Args:
            result: What the command did.
            home: The agent's home directory, shown as ``~``.
            timeout: The timeout it ran under, in seconds.
        """
        body = self._body(result.output, result.output_bytes)
        return _line(body) + _status(result, self._masked(_shorten(result.cwd, home)), timeout)

    @staticmethod
    def decoder() -> codecs.IncrementalDecoder:
        """A decoder for output that arrives in pieces; where they are cut never changes the text.

        ``decode(piece)`` returns the characters that are certain so far, ``decode(b"", True)`` the rest.
        """
        return codecs.getincrementaldecoder("utf-8")("replace")

    def may_become(self, partial: str, predicted: str) -> bool:
        """Whether the observation of a command that has printed ``partial`` can still be ``predicted``.

        Never wrongly False. Exact, except that a replacement character (one to three bytes) is given the
        benefit of the doubt; with ``canonical``, a line that is not finished and what lies beyond a cut are given it
        too. A prefix of what was printed may stand for all of it.

        Args:
            partial: What was printed so far, decoded by :meth:`decoder`, from the start and not truncated.
            predicted: A whole observation.
        """
        body, newline, status = predicted.rpartition("\n")
        if not _STATUS.fullmatch(status):
            return False
        body += newline
        if self.canonical:
            return self._may_become_canonical(partial, body)
        return self._may_be_whole(partial, body) or any(
            self._may_be_cut(partial, body[: elision.start()], int(elision[1]), body[elision.end() :])
            for elision in _ELISION.finditer(body)
        )

    def _body(self, output: bytes, total: int) -> str:
        if total <= self.limit and total == len(output):
            return self._masked(output.decode("utf-8", "replace"))
        # Where the sandbox kept less than was printed, its two halves meet in the middle.
        gap = len(output) // 2 if total > len(output) else 0
        half = min(self.limit, len(output)) // 2
        head, kept = codecs.utf_8_decode(output[:half], "replace", False)
        start = _next_character(output, len(output) - half, gap)
        if gap:  # the sandbox's own cut may have split a character, whose beginning is not there any more
            start = max(start, gap + _rest_of_character(output[gap:]))
        elided = total - kept - (len(output) - start)
        tail = output[start:].decode("utf-8", "replace")
        return f"{_line(self._masked(head))}[... {elided} bytes elided ...]\n{self._masked(tail)}"

    def _masked(self, text: str) -> str:
        return canonical(text) if self.canonical else text

    def _may_become_canonical(self, partial: str, body: str) -> bool:
        """What a finished line becomes is certain, where no cut can have gone through it."""
        lines = partial[: partial.rfind("\n") + 1]
        if _fewest_bytes(partial) <= self.limit and body.startswith(canonical(lines)):
            return True
        uncut = lines.encode("utf-8")[: self.limit // 2 - _LONGEST].decode("utf-8", "ignore")
        head = canonical(uncut[: uncut.rfind("\n") + 1])
        return any(body[: elision.start()].startswith(head) for elision in _ELISION.finditer(body))

    def _may_be_whole(self, partial: str, body: str) -> bool:
        return body.startswith(partial) and any(
            _fewest_bytes(output) <= self.limit and output.startswith(partial) for output in _unlined(body)
        )

    def _may_be_cut(self, partial: str, before: str, elided: int, after: str) -> bool:
        half = self.limit // 2
        return any(
            _may_extend(partial, head, elided, tail, half)
            for head in _unlined(before)
            for tail in _unlined(after)
            if _may_fill(head, half) and _may_fill(tail, half)
        )


def _line(text: str) -> str:
    """``text`` ended by a newline, unless it is empty."""
    return text if not text or text.endswith("\n") else text + "\n"


def _unlined(line: str) -> tuple[str, ...]:
    """The texts of which ``_line`` makes ``line``."""
    if line.endswith("\n") and len(line) > 1 and line[-2] != "\n":
        return (line, line[:-1])
    return (line,)


def _status(result: CommandResult, cwd: str, timeout: float) -> str:
    how = f"timeout after {timeout:g} s" if result.exit_code is None else f"exit {result.exit_code}"
    restarted = ", shell restarted" if result.restarted else ""
    return f"[{how}{restarted}] {cwd}"


def _shorten(cwd: str, home: str) -> str:
    """``cwd`` on one line, in valid Unicode, with ``~`` for ``home``."""
    if cwd == home or cwd.startswith(home.rstrip("/") + "/"):
        cwd = "~" + cwd[len(home.rstrip("/")) :]
    readable = cwd.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in readable)
    # Longer than any path that the kernel takes: somebody went there step by step.
    return shown if len(shown) <= _LONGEST_PATH else f"{shown[:_KEPT_OF_PATH]}[...]{shown[-_KEPT_OF_PATH:]}"


def _next_character(output: bytes, at: int, since: int) -> int:
    """The first position from ``at`` on that is not inside a character that begins at ``since`` or later."""
    for first in range(max(since, at - _LONGEST + 1), at):
        for end in range(at + 1, min(first + _LONGEST, len(output)) + 1):
            try:
                if len(output[first:end].decode("utf-8")) == 1:
                    return end
            except UnicodeDecodeError:
                continue
    return at


def _rest_of_character(output: bytes) -> int:
    """How many bytes at the beginning can only belong to a character that began before."""
    most = min(len(output), _LONGEST - 1)
    return next((i for i in range(most) if not 0x80 <= output[i] < 0xC0), most)


def _fewest_bytes(text: str) -> int:
    """How few bytes can have been decoded to ``text``: one for a replacement character."""
    return len(text.encode("utf-8")) - 2 * text.count(_REPLACEMENT)


def _may_fill(kept: str, half: int) -> bool:
    """Whether ``kept`` can be what a cut after (or before) ``half`` bytes leaves."""
    most = len(kept.encode("utf-8"))
    return _fewest_bytes(kept) <= half and most > half - _LONGEST


def _may_extend(partial: str, head: str, elided: int, tail: str, half: int) -> bool:
    """Whether an output that began with ``partial`` may be cut to ``head``, ``elided`` bytes and ``tail``."""
    if len((head + tail).encode("utf-8")) + elided <= 2 * half:
        return False  # short enough to be shown whole
    if len(partial) <= len(head) and not head.startswith(partial):
        return False
    if _REPLACEMENT in partial + head + tail:
        return partial.startswith(head[: len(partial)]) and _fewest_bytes(partial) <= 2 * half + elided
    # A cut falls short of its half only by less than the character it would have split.
    first = 1 + half - len(head.encode("utf-8"))
    last = 1 + half - len(tail.encode("utf-8"))
    if len(partial) <= len(head):
        return first + last <= elided or max(first, last) <= elided <= _LONGEST
    rest = partial[len(head) :]
    middle = rest.encode("utf-8")[:elided].decode("utf-8", "ignore")
    to_come = elided - len(middle.encode("utf-8"))
    return (
        partial.startswith(head)
        and len(middle[:1].encode("utf-8")) >= first
        and (to_come or len(middle[-1].encode("utf-8"))) >= last
        and (not to_come or rest == middle)
        and tail.startswith(rest[len(middle) :])
    )
