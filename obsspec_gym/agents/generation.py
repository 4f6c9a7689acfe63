"""A generation: the handle on a completion under way, whoever produces it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from functools import partial

from obsspec_gym.errors import GenerationCancelled
from obsspec_gym.types import Completion, TokenIds


class Generation:
    """A completion under way. Await it for the :class:`~obsspec_gym.types.Completion`.

    Cancelling a task that awaits a generation does not cancel the generation: that is :meth:`cancel`'s business,
    and only its owner knows whether anybody else still wants it.

    Args:
        future: Resolves to the completion, or to the error that ended it.
        cancel: Called at most once, when a generation that is not done is cancelled; must reach whatever computes.
        promote: Called when a speculative generation became a committed one.
        partial: Returns the tokens sampled so far, for whoever counts them or reuses them as a draft.

    Attributes:
        finished: Clock time of the event loop at which it was done, failed or cancelled; ``None`` before.

    Example:
        >>> import asyncio
        >>> async def main():
        ...     future = asyncio.get_running_loop().create_future()
        ...     generation = Generation(future)
        ...     future.set_result(Completion(token_ids=(1, 2)))
        ...     return (await generation).token_ids
        >>> asyncio.run(main())
        (1, 2)
    """

    __slots__ = ("_cancel", "_future", "_partial", "_promote", "finished")

    def __init__(
        self,
        future: asyncio.Future[Completion],
        cancel: Callable[[], object] | None = None,
        promote: Callable[[], object] | None = None,
        partial: Callable[[], TokenIds] | None = None,
    ) -> None:
        self._future = future
        self._cancel = cancel
        self._promote = promote
        self._partial = partial
        self.finished: float | None = None
        future.add_done_callback(self._finish)

    def _finish(self, future: asyncio.Future[Completion]) -> None:
        self.finished = future.get_loop().time()
        if not future.cancelled():
            future.exception()  # is seen: a discarded generation may fail without anybody awaiting it

    def __await__(self) -> Generator[None, None, Completion]:
        if not self._future.done():  # like asyncio.shield, with fewer objects: thousands may wait at once
            waiter = self._future.get_loop().create_future()
            release = partial(_release, waiter)
            self._future.add_done_callback(release)
            try:
                yield from waiter
            finally:
                self._future.remove_done_callback(release)
        return self._future.result()

    def done(self) -> bool:
        """Whether the completion (or an error) is there."""
        return self._future.done()

    def result(self) -> Completion:
        """The completion.

        Raises:
            asyncio.InvalidStateError: If it is not done.
            GenerationCancelled: If it was cancelled.
            EngineError: If the engine failed.
        """
        return self._future.result()

    def partial(self) -> TokenIds:
        """The tokens sampled so far: all of them once it is done, what there was when it was cancelled."""
        if self.done() and self._future.exception() is None:
            return self._future.result().token_ids
        return self._partial() if self._partial is not None else ()

    def cancelled(self) -> bool:
        """Whether it was cancelled before it was done."""
        return self.done() and isinstance(self._future.exception(), GenerationCancelled)

    def failed(self) -> bool:
        """Whether it ended in an error or was cancelled."""
        return self.done() and self._future.exception() is not None

    def cancel(self) -> None:
        """Stops the computation. Awaiting it then raises :class:`~obsspec_gym.errors.GenerationCancelled`."""
        if self._future.done():
            return
        cancel, self._cancel = self._cancel, None
        if cancel is not None:
            cancel()  # first: whatever computes is told even where nobody's event loop lives any more
        if not self._future.done() and not self._future.get_loop().is_closed():
            self._future.set_exception(GenerationCancelled("the generation was cancelled"))

    def promote(self) -> None:
        """Turns a speculative generation into a committed one: it goes first from now on."""
        if not self._future.done() and self._promote is not None:
            self._promote()

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Calls ``callback`` (soon, on the event loop) when the generation is done, failed or cancelled."""
        self._future.add_done_callback(lambda _: callback())


def _release(waiter: asyncio.Future[None], future: asyncio.Future[Completion]) -> None:
    if not waiter.done():
        waiter.set_result(None)
