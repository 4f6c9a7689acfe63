"""How much others on this machine lose while the engine computes on processors that they need, too."""

from __future__ import annotations

_KNOWN = 16
"""Before so many steps nothing is said."""

_FULL = 0.5
"""Who waits for a processor for such a part of the time takes from others all that it computes: two share each."""


class Contention:
    """Whether steps waited for a processor, and how much of their time they computed: means that forget.

    A second of an engine on an accelerator, or on processors that would have idled, costs nobody anything. Where tools
    and engine compute on the same busy processors, what the engine computes for nothing is time that tools lose. A
    step tells: its processor time is shorter than its duration by what it waited for a processor.

    Args:
        memory: How many steps it remembers, about.

    Example:
        >>> contention = Contention()
        >>> for _ in range(64):
        ...     contention.add(whole=0.030, computing=0.006, processor=0.003)
        >>> round(contention.share, 2)
        0.1
    """

    def __init__(self, memory: float = 128.0) -> None:
        self._memory = memory
        self._steps = 0
        self._whole = self._computing = self._processor = 0.0  # mean seconds

    def add(self, whole: float, computing: float, processor: float) -> None:
        """A step took so many seconds as a whole, for so many of which it computed or waited for a processor.

        Args:
            whole: Its duration, with what it slept.
            computing: Its duration without that.
            processor: Seconds of processor time it had.
        """
        self._steps += 1
        share = 1 / min(self._steps, self._memory)
        self._whole += share * (whole - self._whole)
        self._computing += share * (computing - self._computing)
        self._processor += share * (min(processor, computing) - self._processor)

    @property
    def share(self) -> float:
        """The part of each of the engine's seconds that others on this machine lose, 0 to 1."""
        if self._steps < _KNOWN or self._computing <= 0.0 or self._whole <= 0.0:
            return 0.0
        waited = 1.0 - self._processor / self._computing
        return min(1.0, waited / _FULL) * min(1.0, self._processor / self._whole)
