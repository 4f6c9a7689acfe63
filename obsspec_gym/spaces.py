"""The space of terminal text: commands, and what comes back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Tuple
from gymnasium.vector.utils import batch_differing_spaces, batch_space, concatenate, create_empty_array

from obsspec_gym.errors import InvalidArgumentError

MAX_BYTES = 1_000_000
HARMLESS_COMMANDS = ("true", "pwd", "ls", "echo hello", "date +%Y", "whoami", "submit")
"""What :meth:`TerminalText.sample` draws from: Gymnasium's checker *executes* samples."""


class TerminalText(Space[str]):
    """Any text a terminal can take and give: ``str`` without NUL and lone surrogates, up to a number of bytes.

    Not ``gymnasium.spaces.Text``: that one needs an alphabet (control characters and emoji fall out), and the shared
    memory of ``AsyncVectorEnv`` loses its texts without a word. With this space ``AsyncVectorEnv`` must be made with
    ``shared_memory=False``; it refuses otherwise. A batch is a tuple of texts, its space a ``Tuple`` of such spaces.

    Args:
        max_bytes: Longest text, in bytes of UTF-8.
        allow_nul: Whether NUL is allowed: never in commands, but programs may print it.
        seed: Of :meth:`sample`.

    Example:
        >>> space = TerminalText()
        >>> "ls -l | sort  # \\U0001f600" in space, "a\\0b" in space, 3 in space
        (True, False, False)
        >>> TerminalText(seed=7).sample() == TerminalText(seed=7).sample()
        True
    """

    def __init__(
        self,
        max_bytes: int = MAX_BYTES,
        *,
        allow_nul: bool = False,
        seed: int | np.random.Generator | None = None,
    ) -> None:
        if max_bytes < max(map(len, HARMLESS_COMMANDS)):
            raise InvalidArgumentError(f"max_bytes must leave room for a command, got {max_bytes}")
        super().__init__(shape=None, dtype=None, seed=seed)
        self.max_bytes = max_bytes
        self.allow_nul = allow_nul

    @property
    def is_np_flattenable(self) -> bool:
        """False: text has no fixed size."""
        return False

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> str:
        """A harmless command.

        Raises:
            InvalidArgumentError: If a mask or probabilities are given; they mean nothing here.
        """
        if mask is not None or probability is not None:
            raise InvalidArgumentError("terminal text takes neither mask nor probability")
        return HARMLESS_COMMANDS[int(self.np_random.integers(len(HARMLESS_COMMANDS)))]

    def contains(self, x: Any) -> bool:
        """Whether ``x`` is such a text."""
        if not isinstance(x, str) or (not self.allow_nul and "\0" in x):
            return False
        try:
            return len(x) <= self.max_bytes and len(x.encode("utf-8")) <= self.max_bytes
        except UnicodeEncodeError:
            return False

    def to_jsonable(self, sample_n: Iterable[str]) -> list[str]:
        """Texts are JSON already."""
        return list(sample_n)

    def from_jsonable(self, sample_n: list[Any]) -> list[str]:
        """The texts that :meth:`to_jsonable` gave."""
        return [str(text) for text in sample_n]

    def __eq__(self, other: object) -> bool:
        """Spaces are equal if they contain the same texts."""
        return (
            isinstance(other, TerminalText) and self.max_bytes == other.max_bytes and self.allow_nul == other.allow_nul
        )

    def __hash__(self) -> int:
        """By value, as equality."""
        return hash((type(self), self.max_bytes, self.allow_nul))

    def __repr__(self) -> str:
        """The call that makes it."""
        return f"TerminalText({self.max_bytes}{', allow_nul=True' if self.allow_nul else ''})"


@batch_space.register(TerminalText)
def _batch_space(space: TerminalText, n: int = 1) -> Tuple[str]:
    return Tuple(tuple(deepcopy(space) for _ in range(n)), seed=deepcopy(space.np_random))


# Gymnasium dispatches on the type of the first space, which its annotation does not say.
@batch_differing_spaces.register(TerminalText)
def _batch_differing_spaces(spaces: Sequence[TerminalText]) -> Tuple[str]:  # type: ignore[misc]
    return Tuple(tuple(deepcopy(space) for space in spaces), seed=deepcopy(spaces[0].np_random))


@concatenate.register(TerminalText)
def _concatenate(space: TerminalText, items: Iterable[str], out: Any) -> tuple[str, ...]:
    # Text has no place of a fixed size to be written to: ``out`` only tells that there was a batch before.
    return tuple(items)


@create_empty_array.register(TerminalText)
def _create_empty_array(space: TerminalText, n: int = 1, fn: Any = None) -> tuple[str, ...]:
    return ("",) * n
