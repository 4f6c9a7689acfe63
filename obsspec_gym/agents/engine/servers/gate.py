"""Who is sent to a server next: as many at once as it runs, committed requests before speculative ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from obsspec_gym.types import Priority


class Ranked(Protocol):
    """What stands in line."""

    priority: Priority
    arrival: int


class Gate:
    """Lets a number of requests in at once.

    A request's priority counts at the moment somebody leaves, so one that is promoted while it waits is early.

    Args:
        places: How many.
    """

    def __init__(self, places: int) -> None:
        self._free = places
        self._line: dict[asyncio.Future[None], Ranked] = {}

    @asynccontextmanager
    async def place(self, request: Ranked) -> AsyncIterator[None]:
        """A place for as long as the context lasts."""
        await self._enter(request)
        try:
            yield
        finally:
            self._leave()

    async def _enter(self, request: Ranked) -> None:
        if self._free:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._line[turn] = request
        try:
            await turn
        except asyncio.CancelledError:
            self._line.pop(turn, None)
            if turn.done() and not turn.cancelled():
                self._leave()  # it was let in at the very moment it gave up
            raise

    def _leave(self) -> None:
        if self._line:
            first = min(self._line, key=lambda turn: (self._line[turn].priority, self._line[turn].arrival))
            del self._line[first]
            first.set_result(None)
        else:
            self._free += 1
