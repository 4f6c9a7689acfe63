"""Scripted policies and world models: seams for tests, with every time taken through ``asyncio.sleep``.

They do what they are told, right or wrong, so that a test can put the speculator into any situation; under a
virtual clock (an event loop whose time is simulated) their seconds cost nothing.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from obsspec_gym.agents.history import History, fingerprint
from obsspec_gym.agents.policy import CallablePolicy
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.seeding import derive_seed
from obsspec_gym.types import (
    Action,
    Completion,
    FinishReason,
    Observation,
    Outcome,
    Prediction,
    TokenIds,
    Transition,
)

Oracle: TypeAlias = Callable[[History, Action], Outcome | Awaitable[Outcome]]
"""What really will happen: ``oracle(history, action)``, where ``history`` ends with the observation."""

Behaviour: TypeAlias = Callable[[History, Action, int, str], Awaitable[list[Prediction]]]
"""The body of a scripted ``predict``: ``behaviour(history, action, n, partial)``."""

_STOP = 256  # the stop token of scripted completions: one past the last byte


class ScriptedPolicy(CallablePolicy):
    """A policy that follows a script.

    Args:
        script: The actions in the order of turns (the last one is repeated when they run out), or a function
            ``script(history, seed) -> action``.
        seconds: What a completion takes, or a function ``seconds(history, seed)``.
        tokens: Whether it has a token view: actions and observations are then written as the UTF-8 bytes of
            their text, a completion ends with token 256, and its logprobs are zero.
        addressed_noise: Whether it claims that its actions are a pure function of (history, seed).

    Attributes:
        started: The histories it was asked to continue, in order.
        cancelled: Those whose completion was cancelled under way.

    Raises:
        InvalidArgumentError: If the script is empty.

    Example:
        >>> from obsspec_gym.types import EpisodeId
        >>> policy = ScriptedPolicy(["ls", "submit"])
        >>> async def main():
        ...     history = History.start(EpisodeId("t"), "do it").act("ls").observe("[exit 0] ~")
        ...     return policy.parse(await policy.generate(history, seed=0))
        >>> asyncio.run(main())
        'submit'
    """

    def __init__(
        self,
        script: Sequence[Action] | Callable[[History, int], Action],
        *,
        seconds: float | Callable[[History, int], float] = 0.0,
        tokens: bool = False,
        addressed_noise: bool = True,
    ) -> None:
        if not callable(script) and not script:
            raise InvalidArgumentError("script needs at least one action, got none")
        super().__init__(self._act, addressed_noise=addressed_noise)
        self._script = script
        self._seconds = seconds
        self._tokens = tokens
        self.started: list[History] = []
        self.cancelled: list[History] = []

    def _act(self, history: History, seed: int) -> Action:
        if callable(self._script):
            return self._script(history, seed)
        return self._script[min(history.turn, len(self._script) - 1)]

    async def _call(self, history: History, seed: int) -> Completion:
        self.started.append(history)
        try:
            await asyncio.sleep(self._seconds(history, seed) if callable(self._seconds) else self._seconds)
        except asyncio.CancelledError:
            self.cancelled.append(history)
            raise
        action = self._act(history, seed)
        token_ids = self.encode_action(action)
        reason = FinishReason.STOP if self._tokens else FinishReason.CALL
        return Completion(token_ids, (0.0,) * len(token_ids), reason, action=action)

    def encode_action(self, action: Action) -> TokenIds:
        """The bytes of the action's text and the stop token; nothing without a token view."""
        return (*str(action).encode(), _STOP) if self._tokens else ()

    def encode_observation(self, history: History | None, observation: Observation) -> TokenIds:
        """The bytes of the observation's text; nothing without a token view."""
        return tuple(str(observation).encode()) if self._tokens else ()


class ScriptedWorldModel:
    """A world model that behaves as told: right, wrong, slow, raising, hanging, or a mixture.

    Args:
        behaviour: The body of ``predict``.

    Attributes:
        calls: What it was asked, in order: (history, action, n, partial).
        observed: The transitions it was told of.
        cancelled: How many calls were cancelled under way.
        closed: Whether it was closed.

    Example:
        >>> from obsspec_gym.types import EpisodeId
        >>> model = ScriptedWorldModel.right(lambda history, action: Outcome(f"{action}!"))
        >>> history = History.start(EpisodeId("t"), "do it")
        >>> [prediction] = asyncio.run(model.predict(history, "ls", 1))
        >>> prediction.observation
        'ls!'
    """

    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        self.calls: list[tuple[History, Action, int, str]] = []
        self.observed: list[Transition] = []
        self.cancelled = 0
        self.closed = False

    @classmethod
    def right(cls, oracle: Oracle, *, seconds: float = 0.0, probability: float = 1.0) -> ScriptedWorldModel:
        """Predicts what the oracle says, after ``seconds``."""

        async def behave(history: History, action: Action, n: int, partial: str) -> list[Prediction]:
            await asyncio.sleep(seconds)
            outcome = await _ask(oracle, history, action)
            return [_prediction(outcome, probability, "right")][:n]

        return cls(behave)

    @classmethod
    def among(cls, oracle: Oracle, *, rank: int, seconds: float = 0.0) -> ScriptedWorldModel:
        """Predicts the right outcome as the ``rank``-th most probable (from 0), after wrong ones."""

        async def behave(history: History, action: Action, n: int, partial: str) -> list[Prediction]:
            await asyncio.sleep(seconds)
            outcome = await _ask(oracle, history, action)
            outcomes = [_spoiled(outcome, i) for i in range(rank)] + [outcome]
            return [_prediction(each, 1.0 / (2 + i), "among") for i, each in enumerate(outcomes)][:n]

        return cls(behave)

    @classmethod
    def wrong(cls, oracle: Oracle, *, seconds: float = 0.0) -> ScriptedWorldModel:
        """Predicts ``n`` outcomes that all differ from what the oracle says."""

        async def behave(history: History, action: Action, n: int, partial: str) -> list[Prediction]:
            await asyncio.sleep(seconds)
            outcome = await _ask(oracle, history, action)
            return [_prediction(_spoiled(outcome, i), 1.0 / (1 + i), "wrong") for i in range(n)]

        return cls(behave)

    @classmethod
    def wrong_end(cls, oracle: Oracle, *, seconds: float = 0.0) -> ScriptedWorldModel:
        """Predicts the right observation, and the contrary of whether the episode ends."""

        async def behave(history: History, action: Action, n: int, partial: str) -> list[Prediction]:
            await asyncio.sleep(seconds)
            outcome = await _ask(oracle, history, action)
            contrary = Outcome(outcome.observation, not outcome.ends, outcome.visible)
            return [_prediction(contrary, 1.0, "wrong_end")][:n]

        return cls(behave)

    @classmethod
    def raising(cls, error: Exception | None = None, *, seconds: float = 0.0) -> ScriptedWorldModel:
        """Raises ``error`` (a RuntimeError unless told otherwise) after ``seconds``."""

        async def behave(history: History, action: Action, n: int, partial: str) -> list[Prediction]:
            await asyncio.sleep(seconds)
            raise error if error is not None else RuntimeError("this world model always fails")

        return cls(behave)

    @classmethod
    def hanging(cls) -> ScriptedWorldModel:
        """Never answers; it can be cancelled."""

        async def behave(history: History, action: Action, n: int, partial: str) -> list[Prediction]:
            await asyncio.Event().wait()
            return []

        return cls(behave)

    @classmethod
    def silent(cls, *, seconds: float = 0.0) -> ScriptedWorldModel:
        """Has no prediction."""

        async def behave(history: History, action: Action, n: int, partial: str) -> list[Prediction]:
            await asyncio.sleep(seconds)
            return []

        return cls(behave)

    @classmethod
    def mixed(cls, models: Sequence[ScriptedWorldModel], *, seed: int) -> ScriptedWorldModel:
        """Behaves like one of ``models``, chosen by hash of the seed, the history and the action.

        Raises:
            InvalidArgumentError: If there are no models.
        """
        if not models:
            raise InvalidArgumentError("models needs at least one world model, got none")

        async def behave(history: History, action: Action, n: int, partial: str) -> list[Prediction]:
            place = derive_seed("mixed", seed, history.world_key.hex(), fingerprint(action).hex())
            return await models[place % len(models)].predict(history, action, n, partial)

        return cls(behave)

    async def predict(self, history: History, action: Action, n: int, partial: str = "") -> list[Prediction]:
        """Behaves as told."""
        self.calls.append((history, action, n, partial))
        try:
            return await self._behaviour(history, action, n, partial)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    def observe(self, transition: Transition) -> None:
        """Writes the transition down."""
        self.observed.append(transition)

    def close(self) -> None:
        """Notes that it was closed."""
        self.closed = True


async def _ask(oracle: Oracle, history: History, action: Action) -> Outcome:
    outcome = oracle(history, action)
    return await outcome if inspect.isawaitable(outcome) else outcome


def _prediction(outcome: Outcome, probability: float, source: str) -> Prediction:
    return Prediction(outcome.observation, outcome.ends, probability, source, outcome.visible)


def _spoiled(outcome: Outcome, index: int) -> Outcome:
    """An outcome that differs from ``outcome``, and from those of other indices."""
    observation = outcome.observation
    if isinstance(observation, str):
        return Outcome(f"{observation}\n(wrong {index})", outcome.ends, outcome.visible)
    # Any observation that is no text: only what the policy sees beside it can be falsified within its space.
    return Outcome(observation, outcome.ends, ("wrong", index, outcome.visible))
