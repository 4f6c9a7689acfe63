"""A virtual clock: an event loop on which waiting takes no time.

Everything in this package tells time by its event loop, so a simulation is the real code on this loop: ``sleep``
returns at once with the clock moved on, and a schedule of hours runs in milliseconds, the same every time.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _SkippingSelector(selectors.DefaultSelector):
    """Never waits: reports how long the loop would have waited."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise RuntimeError("the virtual clock stands still: every task waits and nothing is scheduled")
        self.skipped += timeout
        return ready


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """An event loop whose :meth:`time` starts at 0 and jumps from one scheduled moment to the next.

    What waits for threads, processes or sockets has no place on it: nothing would be scheduled for it.

    Example:
        >>> async def nap():
        ...     await asyncio.sleep(3600)
        ...     return asyncio.get_running_loop().time()
        >>> run_virtual(nap())
        3600.0
    """

    def __init__(self) -> None:
        self._skipping = _SkippingSelector()
        super().__init__(self._skipping)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._skipping.skipped


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine to its end on a virtual clock.

    Raises:
        RuntimeError: If every task waits for something that can never happen.
    """
    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        return runner.run(main)
