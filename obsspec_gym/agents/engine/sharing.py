"""Equal requests under way at the same time are generated once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from obsspec_gym.agents.engine.base import Capabilities, Engine, EngineLoad, Weights
from obsspec_gym.agents.generation import Generation
from obsspec_gym.types import Completion, Hint, Priority, Sampling


class SharingEngine:
    """Passes requests on to an engine, but one that equals another under way joins it.

    Requests are equal if they have the same prompt, sampling and seed, under the same weights, and the answer depends
    on nothing else: greedy ones are, and with an engine of addressed noise all. (Drafts and hints change seconds only;
    the first one's are used.) The members of a group do much the same, and at the same time: a world model is asked
    what their commands print before a memory has seen it once.

    Each request has a generation of its own, to await and to cancel; what computes is cancelled with the last of them.
    A committed request commits it for all.

    Args:
        engine: Generates. The caller's: :meth:`close` closes nothing.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._under_way: dict[Any, _Shared] = {}

    @property
    def capabilities(self) -> Capabilities:
        """The engine's."""
        return self._engine.capabilities

    @property
    def weights_version(self) -> int:
        """The engine's."""
        return self._engine.weights_version

    def submit(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        seed: int,
        *,
        hint: Hint | None = None,
        priority: Priority = Priority.COMMITTED,
        draft: Sequence[int] = (),
    ) -> Generation:
        """Starts a generation, or joins one; see :meth:`obsspec_gym.agents.engine.base.Engine.submit`."""
        version, greedy = self._engine.weights_version, sampling.temperature == 0
        key = (asyncio.get_running_loop(), version, tuple(prompt_ids), sampling, None if greedy else seed)
        shared = self._under_way.get(key)
        if shared is not None:
            if priority is Priority.COMMITTED:
                shared.generation.promote()
            return shared.join()
        generation = self._engine.submit(prompt_ids, sampling, seed, hint=hint, priority=priority, draft=draft)
        if generation.done() or not (greedy or self._engine.capabilities.addressed_noise):
            return generation
        shared = self._under_way[key] = _Shared(generation, partial(self._under_way.pop, key, None))
        return shared.join()

    def load(self) -> EngineLoad:
        """The engine's."""
        return self._engine.load()

    def update_weights(self, weights: Weights | None = None) -> int:
        """Hands weights to the engine; nothing joins what the old ones generate."""
        return self._engine.update_weights(weights)

    def close(self) -> None:
        """Does nothing: the engine is the caller's."""


class _Shared:
    """A generation that several wait for.

    Args:
        generation: The engine's.
        ended: Called once, when nobody can join it any more: it is done, or nobody waited for it.
    """

    def __init__(self, generation: Generation, ended: Callable[[], object]) -> None:
        self.generation = generation
        self._ended: Callable[[], object] | None = ended
        self._waiting: list[asyncio.Future[Completion]] = []
        generation.add_done_callback(self._pass_on)

    def join(self) -> Generation:
        """A generation of one's own, with the same completion."""
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        generation = self.generation
        return Generation(future, partial(self._leave, future), generation.promote, generation.partial)

    def _leave(self, future: asyncio.Future[Completion]) -> None:
        """One no longer waits; what nobody waits for is not computed."""
        self._waiting.remove(future)
        if not self._waiting:
            self._end()
            self.generation.cancel()

    def _pass_on(self) -> None:
        """It is done, with a completion or an error."""
        self._end()
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if future.done():
                continue
            try:
                future.set_result(self.generation.result())
            except Exception as error:  # noqa: BLE001 - whatever the engine failed of, everyone is told
                future.set_exception(error)

    def _end(self) -> None:
        ended, self._ended = self._ended, None
        if ended is not None:  # not twice: by now an equal request may stand in its place
            ended()
