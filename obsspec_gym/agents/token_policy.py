"""A policy that speaks tokens: an engine's completions *are* the actions. For simulations and tests of exactness."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from obsspec_gym.agents.engine.base import Engine, EngineLoad
from obsspec_gym.agents.generation import Generation
from obsspec_gym.agents.history import History
from obsspec_gym.types import Action, Completion, Hint, Observation, Priority, Sampling, TokenIds


def bytes_of(observation: Observation) -> TokenIds:
    """The UTF-8 bytes of an observation's text, as token ids below 256; at least one."""
    return tuple(str(observation).encode()) or (0,)


class TokenPolicy:
    """Actions are tuples of token ids, exactly as sampled.

    Args:
        engine: Generates.
        sampling: How tokens are drawn.
        encode: Turns an observation into token ids; by default its bytes.
    """

    def __init__(
        self, engine: Engine, sampling: Sampling, encode: Callable[[Observation], TokenIds] = bytes_of
    ) -> None:
        self._engine = engine
        self._sampling = sampling
        self._encode = encode

    @property
    def addressed_noise(self) -> bool:
        """As the engine."""
        return self._engine.capabilities.addressed_noise

    def generate(
        self, history: History, *, seed: int, priority: Priority = Priority.COMMITTED, draft: Sequence[int] = ()
    ) -> Generation:
        """Submits the history's tokens."""
        drafts = draft if self._engine.capabilities.drafts else ()
        hint = Hint(history.episode, history.turn)
        return self._engine.submit(history.token_ids, self._sampling, seed, hint=hint, priority=priority, draft=drafts)

    def parse(self, completion: Completion) -> Action:
        """The token ids."""
        return completion.token_ids

    def encode_action(self, action: Action) -> TokenIds:
        """The token ids."""
        return tuple(action)

    def load(self) -> EngineLoad:
        """How busy the engine is."""
        return self._engine.load()

    def encode_observation(self, history: History | None, observation: Observation) -> TokenIds:
        """The observation's token ids."""
        return self._encode(observation)
