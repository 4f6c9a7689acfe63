"""What a terminal accepts as an action."""

from __future__ import annotations

from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.types import SUBMIT, MalformedCall

MAX_COMMAND_BYTES = 1_000_000
"""A longer command is a bad argument."""


def check_command(command: object) -> str:
    """Returns ``command`` if a terminal can be sent it. A malformed call is never sent, so it may hold anything.

    Raises:
        InvalidArgumentError: If it is not text, holds NUL or lone surrogates, or is over 1,000,000 bytes of UTF-8.

    Example:
        >>> check_command("ls")
        'ls'
    """
    if not isinstance(command, str):
        raise InvalidArgumentError(f"a terminal action is a str, got {type(command).__name__}")
    if isinstance(command, MalformedCall):
        return command
    if "\0" in command:
        raise InvalidArgumentError(f"a command cannot hold NUL, got one at character {command.index(chr(0))}")
    try:
        size = len(command.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(
            f"a command must be valid Unicode, got a lone surrogate at character {error.start}"
        ) from None
    if size > MAX_COMMAND_BYTES:
        raise InvalidArgumentError(f"a command is at most {MAX_COMMAND_BYTES:,} bytes, got {size:,}")
    return command


def submitted_answer(command: str) -> str | None:
    """The answer that ``submit`` or ``submit TEXT`` hands in; ``None`` for every other command.

    Example:
        >>> submitted_answer("submit 42"), submitted_answer("submit"), submitted_answer("echo submit")
        ('42', '', None)
    """
    first, *rest = command.split(maxsplit=1) or [""]
    if first != SUBMIT:
        return None
    return rest[0].rstrip() if rest else ""
