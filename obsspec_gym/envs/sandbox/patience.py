"""How long the parts of one call may wait, so that the whole of it ends in time where nobody answers."""

from __future__ import annotations

import math
import time

_GRACE_SECONDS = 1.7  # after the call's timeout, for all there is to do then
_ANSWER_SECONDS = 1.2  # of it, for one answer
_LEAST_SECONDS = 0.05


class Patience:
    """The seconds that are left of a call, shared by everything that waits during it.

    Until the call's timeout an answer may take as long as it needs: a busy machine is slow, not broken. From then on
    everything together has less than two seconds. Between calls nothing is bounded.

    Example:
        >>> patience = Patience()
        >>> patience.seconds(30.0)
        30.0
        >>> patience.begin(5.0)
        >>> 4.9 < patience.seconds(30.0) <= 5.0
        True
    """

    def __init__(self) -> None:
        self._timeout_at = math.inf

    def begin(self, timeout: float) -> None:
        """A call begins that has a timeout."""
        self._timeout_at = time.monotonic() + timeout

    def extend(self, timeout: float) -> None:
        """A part of it begins now that has a timeout of its own."""
        self._timeout_at = max(self._timeout_at, time.monotonic() + timeout)

    def end(self) -> None:
        """The call ended well. One that does not leaves what is to be cleared away after it bounded."""
        self._timeout_at = math.inf

    def left(self) -> float:
        """Seconds until the timeout; negative afterwards."""
        return self._timeout_at - time.monotonic()

    def seconds(self, most: float) -> float:
        """How long to wait for one answer.

        Args:
            most: Seconds after which it is given up in any case.
        """
        left = self.left()
        return max(_LEAST_SECONDS, min(most, max(_ANSWER_SECONDS, left), left + _GRACE_SECONDS))
