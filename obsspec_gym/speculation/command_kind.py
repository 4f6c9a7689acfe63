"""The kind of a command: what its predictions and its running time are compared by."""

from __future__ import annotations

import re
from functools import lru_cache

from obsspec_gym.types import Action, MalformedCall

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_LAUNCHERS = frozenset({"sudo", "env", "nohup", "nice", "time", "timeout", "exec", "command"})
_LONGEST = 32


def command_kind(action: Action) -> str:
    """The name of the program that a shell command runs first; for actions that are no text, their type.

    Example:
        >>> command_kind("LANG=C /usr/bin/grep -rn error src | head"), command_kind("cd /tmp && make"), command_kind(3)
        ('grep', 'cd', 'int')
    """
    if isinstance(action, MalformedCall):
        return "malformed"
    return _of_text(str(action)) if isinstance(action, str) else type(action).__name__


@lru_cache(maxsize=4096)
def _of_text(command: str) -> str:
    launched = False
    for word in command[:1000].split():
        bare = word.strip("()\"'`;&|{}")
        if not bare or _ASSIGNMENT.match(bare) or (launched and (bare.startswith("-") or bare[0].isdigit())):
            continue
        name = bare.rsplit("/", 1)[-1]
        if name not in _LAUNCHERS:
            return name[:_LONGEST]
        launched = True
    return "sh"
