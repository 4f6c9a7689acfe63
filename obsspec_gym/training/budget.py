"""A policy that stops an episode where the trainer's row would be full."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from obsspec_gym.agents.generation import Generation
from obsspec_gym.agents.history import History
from obsspec_gym.agents.lm_policy import LMPolicy
from obsspec_gym.agents.policy import PolicyWrapper
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.types import Completion, Priority


class BudgetedPolicy(PolicyWrapper[LMPolicy]):
    """A language-model policy whose episodes have at most so many tokens after their prompt.

    The budget counts what the trainer counts: actions and observations. A completion gets what is left of it; one
    that is cut by that is no command (a ``MalformedCall``), and an episode with nothing left is truncated. So no row
    is ever cut afterwards: every token that was paid for is trained on, with the history it was sampled from. How
    much is left is a function of the history alone, so completions stay pure functions of it.

    Args:
        policy: Generates.
        completion_tokens: The budget of one episode, in tokens.

    Raises:
        InvalidArgumentError: If the budget is not positive.
    """

    def __init__(self, policy: LMPolicy, completion_tokens: int) -> None:
        if completion_tokens < 1:
            raise InvalidArgumentError(f"an episode needs a budget of at least 1 token, got {completion_tokens}")
        super().__init__(policy)
        self._budget = completion_tokens

    def generate(
        self, history: History, *, seed: int, priority: Priority = Priority.COMMITTED, draft: Sequence[int] = ()
    ) -> Generation:
        """Starts the next completion, or returns one that has failed where there is no room for any.

        It is returned and not raised because a *possible* history may have no room either: that is no fault of the
        world model that thought of it.
        """
        used = history.length - history.root.length
        room = self._budget - used
        if room < 1:
            return _failed(f"the episode's {used} tokens leave no room within its budget of {self._budget}")
        policy, sampling = self._policy, self._policy.sampling
        if room < sampling.max_tokens:
            policy = policy.with_sampling(replace(sampling, max_tokens=room))
        try:
            return policy.generate(history, seed=seed, priority=priority, draft=draft)
        except InvalidArgumentError as error:  # the prompt fills the model's context
            return _failed(str(error))


def _failed(reason: str) -> Generation:
    future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
    future.set_exception(InvalidArgumentError(reason))
    return Generation(future)
