"""How busy this machine's processors are, for an engine that computes on them beside the tools."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

_EVERY = 0.2
"""Seconds between two looks."""

_MEMORY = 1.0
"""Seconds that are remembered, about."""


class Ticks(NamedTuple):
    """What processors did since the machine started, all of them together, in ticks.

    Attributes:
        busy: Computing what does not stand back for others.
        all: Anything, or nothing.
    """

    busy: int
    all: int


class Processors:
    """Whether a processor is free for what an engine computes.

    A generation on a prediction is free where a processor would have idled. Where tools keep all of them busy, it takes
    from the tools, and from the generations that are needed, all that it computes.

    Niced processes stand back and do not count. A quota of processor time that a control group sets is not seen.

    Args:
        count: How many processors there are; by default those that this process may use.
        look: Returns what they did so far; ``None`` where that cannot be known (not Linux).
        clock: Seconds.
    """

    def __init__(
        self,
        count: int | None = None,
        look: Callable[[], Ticks | None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        mine = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set[int]()
        self._count = count or max(1, len(mine))
        self._look = look or (lambda: _look(mine))
        self._clock = clock
        self._looked, self._ticks = clock(), self._look()
        self._busy = 0.0

    @property
    def contended(self) -> float:
        """The probability that none of them was free, lately; 0 until it is known."""
        now = self._clock()
        if now - self._looked >= _EVERY:
            before, self._ticks = self._ticks, self._look()
            if before is not None and self._ticks is not None and self._ticks.all > before.all:
                busy = (self._ticks.busy - before.busy) / (self._ticks.all - before.all)
                self._busy += (1 - math.exp((self._looked - now) / _MEMORY)) * (busy - self._busy)
            self._looked = now
        return min(1.0, max(0.0, self._busy)) ** self._count


def _look(mine: set[int]) -> Ticks | None:
    """What these processors did, by ``/proc/stat``."""
    try:
        lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    names = {f"cpu{number}" for number in mine}
    busy = everything = 0
    for line in lines:
        name, *fields = line.split()
        if name in names:
            user, nice, system, idle, waiting, interrupts, soft_interrupts, stolen = map(int, fields[:8])
            worked = user + system + interrupts + soft_interrupts + stolen
            busy, everything = busy + worked, everything + worked + nice + idle + waiting
    return Ticks(busy, everything) if everything else None
