"""What every policy offers, and the adapter for plain Python callables."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from obsspec_gym.agents.engine.base import EngineLoad
from obsspec_gym.agents.generation import Generation
from obsspec_gym.agents.history import History
from obsspec_gym.errors import GenerationCancelled
from obsspec_gym.types import Action, Completion, FinishReason, Observation, Priority, TokenIds


@runtime_checkable
class Policy(Protocol):
    """Chooses actions. Knows nothing of environments: it reads histories."""

    @property
    def addressed_noise(self) -> bool:
        """Whether a completion is a pure function of (weights, history, seed): see invariants I2a and I6."""
        ...

    def generate(
        self,
        history: History,
        *,
        seed: int,
        priority: Priority = Priority.COMMITTED,
        draft: Sequence[int] = (),
    ) -> Generation:
        """Starts generating the next action.

        Args:
            history: Ends with an observation, real or predicted.
            seed: The turn's seed (:func:`obsspec_gym.seeding.turn_seed`).
            priority: Who goes first.
            draft: Tokens that might come; empty for policies without tokens.
        """
        ...

    def parse(self, completion: Completion) -> Action:
        """The action a completion stands for. Never raises for what a model wrote."""
        ...

    def encode_action(self, action: Action) -> TokenIds:
        """The tokens of an action that came from elsewhere (an expert, a user)."""
        ...

    def encode_observation(self, history: History | None, observation: Observation) -> TokenIds:
        """The tokens that show an observation to the policy, up to where its next completion begins.

        Args:
            history: What came before, ending with an action; ``None`` for the first observation of an episode.
            observation: The observation.
        """
        ...


@runtime_checkable
class Served(Protocol):
    """Knows how busy the engine is that it generates with."""

    def load(self) -> EngineLoad:
        """How busy it is."""
        ...


PolicyT = TypeVar("PolicyT", bound=Policy)


class PolicyWrapper(Generic[PolicyT]):
    """A policy around another one: what a subclass does not change is the other's, its engine's load included.

    Args:
        policy: The other one.
    """

    def __init__(self, policy: PolicyT) -> None:
        self._policy = policy
        self._load: Callable[[], EngineLoad] = policy.load if isinstance(policy, Served) else EngineLoad

    @property
    def addressed_noise(self) -> bool:
        """As the policy's."""
        return self._policy.addressed_noise

    def generate(
        self, history: History, *, seed: int, priority: Priority = Priority.COMMITTED, draft: Sequence[int] = ()
    ) -> Generation:
        """As the policy."""
        return self._policy.generate(history, seed=seed, priority=priority, draft=draft)

    def parse(self, completion: Completion) -> Action:
        """As the policy."""
        return self._policy.parse(completion)

    def encode_action(self, action: Action) -> TokenIds:
        """As the policy."""
        return self._policy.encode_action(action)

    def encode_observation(self, history: History | None, observation: Observation) -> TokenIds:
        """As the policy."""
        return self._policy.encode_observation(history, observation)

    def load(self) -> EngineLoad:
        """As the policy's; that of an idle engine where it has none to tell of."""
        return self._load()


class CallablePolicy:
    """A plain Python function as a policy.

    Args:
        function: ``function(history, seed) -> action``, or async. ``history.value`` is the observation. It must
            draw all its randomness from ``seed``; with ``addressed_noise=False`` it need not.
        addressed_noise: Whether that is promised.

    Example:
        >>> import asyncio
        >>> from obsspec_gym.types import EpisodeId
        >>> policy = CallablePolicy(lambda history, seed: history.value + 1)
        >>> async def main():
        ...     history = History.start(EpisodeId("t"), 41)
        ...     return policy.parse(await policy.generate(history, seed=0))
        >>> asyncio.run(main())
        42
    """

    def __init__(
        self, function: Callable[[History, int], Action | Awaitable[Action]], *, addressed_noise: bool = True
    ) -> None:
        self._function = function
        self._addressed_noise = addressed_noise

    @property
    def addressed_noise(self) -> bool:
        """Whether actions are a pure function of (history, seed)."""
        return self._addressed_noise

    def generate(
        self,
        history: History,
        *,
        seed: int,
        priority: Priority = Priority.COMMITTED,
        draft: Sequence[int] = (),
    ) -> Generation:
        """Calls the function in a task of its own."""
        task = asyncio.get_running_loop().create_task(self._call(history, seed))
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()

        def finish(done: asyncio.Task[Completion]) -> None:
            if future.done():
                return
            if done.cancelled():  # not by the generation: by the function itself, or by a closing event loop
                future.set_exception(GenerationCancelled("the policy's function was cancelled"))
                return
            error = done.exception()
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(done.result())

        task.add_done_callback(finish)
        return Generation(future, cancel=lambda: _cancel(task))

    async def _call(self, history: History, seed: int) -> Completion:
        action = self._function(history, seed)
        if inspect.isawaitable(action):
            action = await action
        return Completion(finish_reason=FinishReason.CALL, action=action)

    def parse(self, completion: Completion) -> Action:
        """The action the function returned."""
        return completion.action

    def encode_action(self, action: Action) -> TokenIds:
        """No tokens."""
        return ()

    def encode_observation(self, history: History | None, observation: Observation) -> TokenIds:
        """No tokens."""
        return ()


def _cancel(task: asyncio.Task[Completion]) -> None:
    task.cancel()


def as_policy(policy: Policy | Callable[..., Any]) -> Policy:
    """Accepts a policy, or a callable ``function(history, seed)`` that becomes one.

    Raises:
        TypeError: If it is neither.
    """
    if isinstance(policy, Policy):
        return policy
    if callable(policy):
        return CallablePolicy(policy)
    raise TypeError(f"policy must be a Policy or a callable (history, seed) -> action, got {type(policy).__name__}")
