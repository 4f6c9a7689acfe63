"""How busy this machine's processors are, for an engine that computes on them beside the tools."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from typing import NamedTuple

from obsspec_gym.errors import MissingExtraError

try:
    import psutil  # type: ignore[import-untyped]  # ships no types
except ImportError as error:
    raise MissingExtraError("psutil", "lm") from error

_EVERY = 0.2
"""Seconds between two looks."""

_MEMORY = 1.0
"""Seconds that are remembered, about."""


class Did(NamedTuple):
    """What processors did since the machine started, all of them together, in seconds.

    Attributes:
        busy: Computing what does not stand back for others.
        all: Anything, or nothing.
    """

    busy: float
    all: float


class Processors:
    """Whether a processor is free for what an engine computes.

    A generation on a prediction is free where a processor would have idled. Where tools keep all of them busy, it takes
    from the tools, and from the generations that are needed, all that it computes.

    Niced processes stand back and do not count. A quota of processor time that a control group sets is not seen.

    Args:
        count: How many processors there are; by default those that this process may use.
        look: Returns what they did so far; ``None`` where that cannot be known.
        clock: Seconds.
    """

    def __init__(
        self,
        count: int | None = None,
        look: Callable[[], Did | None] | None = None,
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


def _look(mine: set[int]) -> Did | None:
    """What these processors did, or all where it is not known which are these."""
    try:
        each = psutil.cpu_times(percpu=True)
    except OSError:
        return None
    chosen = [times for number, times in enumerate(each) if not mine or number in mine]
    names = ("user", "system", "irq", "softirq", "steal")  # not every system has all of them
    busy = sum(getattr(times, name, 0.0) for times in chosen for name in names)
    return Did(busy, busy + sum(times.nice + times.idle + getattr(times, "iowait", 0.0) for times in chosen))
