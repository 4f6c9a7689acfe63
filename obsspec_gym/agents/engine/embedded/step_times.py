"""How long a step takes by its number of rows, learnt while steps run, and what is worth its part in one."""

from __future__ import annotations

CHANCE = 0.5
"""A speculative request is taken to come true with this probability: the engine is told nothing of how likely it is."""

_KNOWN = 16
"""Before so many steps nothing is said of how they slow down."""

_OUTLIER = 3.0
"""Whatever else a machine does can hold up a step: not more than so many times what was expected is believed."""


class StepTimes:
    """A line through the seconds of steps over their rows: least squares that forgets.

    Args:
        memory: How many steps it remembers, about.

    Example:
        >>> times = StepTimes()
        >>> for rows in [1, 8] * 64:
        ...     times.add(rows, 0.010 + 0.001 * rows)
        >>> round(times.seconds(4), 3)
        0.014
    """

    def __init__(self, memory: float = 256.0) -> None:
        self._memory = memory
        self._steps = 0
        self._rows = self._seconds = 0.0  # means
        self._spread = self._joint = 0.0  # variance of the rows, and their covariance with the seconds

    def add(self, rows: int, seconds: float) -> None:
        """A step of so many rows took so long."""
        if self._steps >= _KNOWN:
            seconds = min(seconds, _OUTLIER * max(self._seconds, self.seconds(rows)))
        self._steps += 1
        share = 1 / min(self._steps, self._memory)
        more_rows, more_seconds = rows - self._rows, seconds - self._seconds
        self._rows += share * more_rows
        self._seconds += share * more_seconds
        self._spread = (1 - share) * (self._spread + share * more_rows * more_rows)
        self._joint = (1 - share) * (self._joint + share * more_rows * more_seconds)

    @property
    def slope(self) -> float:
        """Seconds that one more row costs; 0 until it is known."""
        if self._steps < _KNOWN:
            return 0.0
        return max(0.0, self._joint / (self._spread + 0.01))  # where rows hardly vary they tell nothing

    def seconds(self, rows: int) -> float:
        """What a step of so many rows is expected to take."""
        return max(0.0, self._seconds + self.slope * (rows - self._rows))

    def worth(self, rows: int, committed: int) -> bool:
        """Whether a speculative request is worth its part in a step.

        With one more row each committed request waits one slope longer. The speculative one gets a step further, and
        if it comes true that step's seconds are hidden. (A prompt has many rows, and costs the same in however many
        steps it is read: so it is one row, too, by which it is told.)

        Args:
            rows: Rows of the step without it.
            committed: Committed requests in the step.
        """
        return committed * self.slope <= CHANCE * self.seconds(rows + 1)
