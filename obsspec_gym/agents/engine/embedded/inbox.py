"""Who awaits what: the futures of the requests under way, each on its own event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

from obsspec_gym.agents.engine.embedded.requests import Finished, Progress
from obsspec_gym.errors import EngineError, GenerationCancelled
from obsspec_gym.types import Completion


class Inbox:
    """Takes finished requests to their futures, from any thread."""

    def __init__(self) -> None:
        self._futures: dict[int, asyncio.Future[Completion]] = {}
        self._partial: dict[int, list[int]] = {}
        self._speculative: set[int] = set()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._futures)

    @property
    def speculative(self) -> int:
        """How many of the requests under way are speculative."""
        return len(self._speculative)

    def expect(self, number: int, future: asyncio.Future[Completion], *, speculative: bool = False) -> list[int]:
        """Somebody awaits a request. Returns where its tokens are noted as they become known."""
        with self._lock:
            self._futures[number] = future
            if speculative:
                self._speculative.add(number)
            return self._partial.setdefault(number, [])

    def promote(self, number: int) -> None:
        """A speculative request became a committed one."""
        with self._lock:
            self._speculative.discard(number)

    def forget(self, number: int) -> None:
        """Nobody awaits it any more."""
        with self._lock:
            self._pop(number)

    def note(self, progress: Progress | None) -> None:
        """Notes tokens of requests that are not finished."""
        if progress is None:
            return
        with self._lock:
            for number, tokens in progress.tokens.items():
                known = self._partial.get(number)
                if known is not None:
                    known.extend(tokens)

    def deliver(self, finished: Sequence[Finished]) -> None:
        """Resolves the futures of what has finished."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Completion], Finished]]] = {}
        with self._lock:
            for end in finished:
                future = self._pop(end.request)
                if future is not None:
                    by_loop.setdefault(future.get_loop(), []).append((future, end))
        here = _running_loop()
        for loop, ends in by_loop.items():
            if loop is here:
                _resolve(ends)
            elif not loop.is_closed():
                try:
                    loop.call_soon_threadsafe(_resolve, ends)
                except RuntimeError:  # closed at this very moment: nobody waits any more
                    continue

    def cancel_all(self) -> None:
        """Ends everything with ``GenerationCancelled``."""
        self.deliver([Finished(number, cancelled=True) for number in self._numbers()])

    def fail_all(self, error: str) -> None:
        """Ends everything with ``EngineError``."""
        self.deliver([Finished(number, error=error) for number in self._numbers()])

    def _pop(self, number: int) -> asyncio.Future[Completion] | None:
        self._partial.pop(number, None)
        self._speculative.discard(number)
        return self._futures.pop(number, None)

    def _numbers(self) -> list[int]:
        with self._lock:
            return list(self._futures)


def _resolve(ends: Sequence[tuple[asyncio.Future[Completion], Finished]]) -> None:
    for future, end in ends:
        if future.done():
            continue
        if end.completion is not None:
            future.set_result(end.completion)
        elif end.cancelled:
            future.set_exception(GenerationCancelled("the engine dropped the generation: new weights, or closed"))
        else:
            future.set_exception(EngineError(end.error or "the engine failed"))


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
