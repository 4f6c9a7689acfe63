"""Mistakes like those a small policy makes, for its teachers to recover from and its world model to foresee."""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random

from obsspec_gym.envs.tasks.family import Step, listed
from obsspec_gym.envs.tasks.words import made_up_word

_TOKEN = re.compile(r"[a-zA-Z]+|[0-9]+")
_KEYWORDS = frozenset(
    _TOKEN.findall(
        "cat sed ls echo i s sh fn conf run tests build check unpack app submit grep wc out f h d k l cut paste sort "
        "head n u c S"
    )
)
"""Parts of commands that are not names."""


def mistake(rng: Random, command: str, transcript: Sequence[Step]) -> str:
    """Something else than ``command`` in its place.

    Args:
        rng: Where the randomness comes from.
        command: What the expert would do.
        transcript: What was done so far.
    """
    names = listed(transcript)
    kind = rng.random()
    if kind < 0.45:
        return _garbled(rng, command, transcript)
    if kind < 0.60 and names:
        return f"cat {rng.choice(names)}" if rng.random() < 0.5 else _garbled(rng, f"cat {rng.choice(names)}", [])
    if kind < 0.72 and names:
        programs = [name for name in names if "." not in name and name not in ("cases", "rules", "obj", "out")]
        return f"./{rng.choice(programs)}" if programs else "ls"
    if kind < 0.80 and transcript:
        return transcript[-1][0]
    if kind < 0.97:
        return rng.choice(("ls", "ls", "pwd", "ls out", "ls -l", "cat rules", "./run_tests", "./check", "./build"))
    return rng.choice(("submit", f"submit {rng.randint(1, 300)}"))


def _garbled(rng: Random, command: str, transcript: Sequence[Step]) -> str:
    """The command with one name or number replaced or misspelt."""
    spots = [found for found in _TOKEN.finditer(command) if found[0] not in _KEYWORDS]
    if not spots:
        spots = list(_TOKEN.finditer(command))
    spot = rng.choice(spots)
    seen = _TOKEN.findall(" ".join(observation for _, observation in transcript[-3:]))
    same = [token for token in seen if token.isdigit() == spot[0].isdigit() and token != spot[0]]
    if same and rng.random() < 0.6:
        other = rng.choice(same)
    elif spot[0].isdigit():
        other = str(rng.randint(1, 99))
    elif rng.random() < 0.5:
        other = made_up_word(rng)
    else:
        place = rng.randrange(len(spot[0]))
        other = spot[0][:place] + rng.choice(("", "s", "er", "a")) + spot[0][place + 1 :]
    return command[: spot.start()] + other + command[spot.end() :]
