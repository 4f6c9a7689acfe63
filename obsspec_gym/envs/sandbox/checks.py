"""What a sandbox refuses before it sends anything."""

from __future__ import annotations

import math
from collections.abc import Mapping

from obsspec_gym.errors import InvalidArgumentError

MAX_COMMAND_BYTES = 1_000_000
MAX_VARIABLE_BYTES = 100_000  # the kernel takes 128 KiB for one


def check_command(command: object) -> None:
    """Refuses what no shell can be sent.

    Raises:
        InvalidArgumentError: Not a ``str``, NUL or a lone surrogate in it, or more than 1,000,000 bytes.
    """
    if not isinstance(command, str):
        raise InvalidArgumentError(f"a command must be a str, got {type(command).__name__}")
    if "\0" in command:
        raise InvalidArgumentError(f"a command must not contain NUL, found one at character {command.index(chr(0))}")
    try:
        size = len(command.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"a command must be valid Unicode: {error}") from None
    if size > MAX_COMMAND_BYTES:
        raise InvalidArgumentError(f"a command must have at most {MAX_COMMAND_BYTES:,} bytes, got {size:,}")


def check_timeout(timeout: float) -> None:
    """Refuses a timeout that is not a positive, finite number of seconds.

    Raises:
        InvalidArgumentError: If it is not.
    """
    if not (timeout > 0 and math.isfinite(timeout)):
        raise InvalidArgumentError(f"timeout must be a positive, finite number of seconds, got {timeout}")


def check_environment(env: Mapping[str, str]) -> None:
    """Refuses variables that a process cannot be started with.

    Raises:
        InvalidArgumentError: A name that is not an identifier, NUL in a value, or more than 100,000 bytes.
    """
    for name, value in env.items():
        if not (name.isascii() and name.isidentifier()):
            raise InvalidArgumentError(f"a variable's name must be an identifier, got {name!r}")
        if "\0" in value or len(value.encode("utf-8", "surrogatepass")) > MAX_VARIABLE_BYTES:
            raise InvalidArgumentError(f"the variable {name} must have no NUL and at most {MAX_VARIABLE_BYTES:,} bytes")
