"""What an action runs: world models keep by it what they know of actions they have not seen."""

from __future__ import annotations

from obsspec_gym.types import Action


def program(action: Action) -> str:
    """The first word of a command; for what has none, the name of its type.

    Example:
        >>> program("ls -l"), program(3)
        ('ls', 'int')
    """
    words = action.split(maxsplit=1) if isinstance(action, str) else ()
    return words[0] if words else type(action).__name__
