"""Where results of calls wait to be taken, in the order in which they came."""

from __future__ import annotations

import threading
from collections.abc import Collection
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Futures that are awaited together. Results are known by their future, so none is ever taken for another's."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._coming: dict[Future[T], int] = {}
        self._arrived: dict[Future[T], int] = {}  # in order of arrival

    def __len__(self) -> int:
        """How many were expected and not taken."""
        with self._changed:
            return len(self._coming) + len(self._arrived)

    def expect(self, sender: int, future: Future[T]) -> None:
        """Lets the future's end count as an arrival from ``sender``."""
        with self._changed:
            self._coming[future] = sender
        future.add_done_callback(self._arrive)

    def take(self, at_least: int, timeout: float | None) -> list[tuple[int, Future[T]]]:
        """Waits for ``at_least`` arrivals, ``timeout`` seconds at most, and takes all there are."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._arrived) >= at_least, timeout)
            taken = [(sender, future) for future, sender in self._arrived.items()]
            self._arrived.clear()
        return taken

    def drop(self, senders: Collection[int]) -> None:
        """Forgets what these senders have sent or are yet to send."""
        with self._changed:
            self._coming = {future: sender for future, sender in self._coming.items() if sender not in senders}
            self._arrived = {future: sender for future, sender in self._arrived.items() if sender not in senders}

    def _arrive(self, future: Future[T]) -> None:
        with self._changed:
            sender = self._coming.pop(future, None)
            if sender is not None:  # not dropped
                self._arrived[future] = sender
                self._changed.notify_all()
