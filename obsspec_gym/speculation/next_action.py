"""What a turn hands out: the real observation, and a handle on the action that follows it."""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

from obsspec_gym.agents.generation import Generation
from obsspec_gym.agents.history import History
from obsspec_gym.agents.policy import Policy
from obsspec_gym.types import Action, Completion, Observation


class NextAction:
    """A handle on the next action of one environment. Await it for the action.

    Attributes:
        history: The real history the action is generated for; pass it on to the next :meth:`Speculator.turn`.
        hit: Whether the generation began before the observation was there.
    """

    __slots__ = ("_generation", "_policy", "history", "hit")

    def __init__(self, history: History, generation: Generation, policy: Policy, hit: bool) -> None:
        self.history = history
        self.hit = hit
        self._generation = generation
        self._policy = policy

    def __await__(self) -> Generator[None, None, Action]:
        return self._policy.parse((yield from self._generation.__await__()))

    def done(self) -> bool:
        """Whether the action is there."""
        return self._generation.done()

    def result(self) -> Action:
        """The action.

        Raises:
            asyncio.InvalidStateError: If it is not there yet.
            ObsSpecError: If its generation failed or was cancelled.
        """
        return self._policy.parse(self._generation.result())

    def completion(self) -> Completion:
        """The completion the action was read from; raises like :meth:`result`."""
        return self._generation.result()


class TurnResult(NamedTuple):
    """What a turn came to.

    Attributes:
        observation: The real observation.
        next_action: The next action's handle; ``None`` where the episode is over.
    """

    observation: Observation
    next_action: NextAction | None
