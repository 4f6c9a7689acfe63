"""The turn: execute and predict, generate ahead, verify, commit.

Everything else in this room (the vector wrapper, free-running collection, the trainer's rollouts) calls
:meth:`Speculator.turn`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from obsspec_gym.agents.generation import Generation
from obsspec_gym.agents.history import History, fingerprint
from obsspec_gym.agents.policy import Policy, Served, as_policy
from obsspec_gym.agents.world_model.base import WorldModel
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.seeding import turn_seed
from obsspec_gym.speculation.adaptive import AdaptiveSelector
from obsspec_gym.speculation.futures import Future, Futures, completion_of
from obsspec_gym.speculation.growth import Growth
from obsspec_gym.speculation.next_action import NextAction, TurnResult
from obsspec_gym.speculation.predictor import Patience, Predictor, as_world_model
from obsspec_gym.speculation.record import Span, TurnRecord
from obsspec_gym.speculation.recorder import TurnRecorder
from obsspec_gym.speculation.selector import Off, Selector
from obsspec_gym.types import (
    Action,
    EpisodeId,
    Observation,
    Outcome,
    Prediction,
    Priority,
    TokenIds,
    Transition,
)


class Speculator:
    """Runs turns with observation speculation.

    Belongs to one event loop. One speculator serves any number of episodes at once; each has its own futures.

    Args:
        policy: A policy, or a plain function ``(history, seed) -> action``.
        world_model: Predicts observations; ``None`` for none.
        selector: How far ahead to speculate; an ``AdaptiveSelector`` by default, and ``Off()`` without a world model.
        run_seed: The run's seed; with task, sample and turn it determines every completion.
        policy_step: Optimiser steps the policy's weights have had.
        patience: How much is put up with from the world model.
        max_futures: Bound on the futures alive per environment.
        on_turn: Is called with the record of every turn.

    Example:
        A policy that adds one, a tool that echoes, and a world model that knows it:

        >>> import asyncio
        >>> async def tool(value):
        ...     await asyncio.sleep(0.01)
        ...     return value
        >>> async def main():
        ...     speculator = Speculator(lambda history, seed: history.value + 1, lambda history, action: action)
        ...     action = speculator.start(EpisodeId("count"), 0)
        ...     for _ in range(3):
        ...         value = await action
        ...         observation, action = await speculator.turn(action.history, value, execute=tool(value))
        ...     hit = action.hit
        ...     await speculator.close()
        ...     return observation, hit
        >>> asyncio.run(main())
        (3, True)
    """

    def __init__(
        self,
        policy: Policy | Callable[[History, int], Any],
        world_model: WorldModel | Callable[[History, Action], Any] | None = None,
        selector: Selector | None = None,
        *,
        run_seed: int = 0,
        policy_step: int = 0,
        patience: Patience | None = None,
        max_futures: int = 64,
        on_turn: Callable[[TurnRecord], None] | None = None,
    ) -> None:
        if max_futures < 1:
            raise InvalidArgumentError(f"max_futures must be >= 1, got {max_futures}")
        self.policy = as_policy(policy)
        self._predictor = None if world_model is None else Predictor(as_world_model(world_model), patience)
        self._selector = selector or (Off() if world_model is None else AdaptiveSelector())
        self._growth: Growth | None = None
        if self._predictor is not None:
            ahead = partial(self._generate, priority=Priority.SPECULATIVE)
            self._growth = Growth(self.policy, self._predictor, self._selector, ahead)
        if isinstance(self.policy, Served):
            self._selector.attach(self.policy.load)
        self._run_seed = run_seed
        self._policy_step = policy_step
        self._max_futures = max_futures
        self._recorder = TurnRecorder(on_turn)
        self._episodes: dict[EpisodeId, Futures] = {}

    @property
    def world_model_failures(self) -> dict[str, int]:
        """How often the world model failed, by reason."""
        return dict(self._predictor.failures) if self._predictor else {}

    @property
    def selector_failures(self) -> dict[str, int]:
        """How often the selector failed over a prediction, by reason."""
        return dict(self._growth.selector_failures) if self._growth else {}

    def futures(self, episode: EpisodeId) -> Futures | None:
        """The futures of an episode under way."""
        return self._episodes.get(episode)

    def start(self, episode: EpisodeId, observation: Observation, visible: Any = None) -> NextAction:
        """Begins an episode: starts generating its first action.

        Args:
            episode: Task and sample; the seeds come from it.
            observation: What ``reset`` returned.
            visible: What else the policy reads (see :class:`~obsspec_gym.types.Outcome`).

        Raises:
            InvalidArgumentError: If that episode is under way already.
        """
        if episode in self._episodes:
            raise InvalidArgumentError(f"episode {episode} is under way already; end() it first")
        tokens = self.policy.encode_observation(None, observation)
        root = self._real(History.start(episode, observation, tokens, visible))
        self._episodes[episode] = Futures(root, self._max_futures)
        return self._handle(root, hit=False)

    async def turn(self, history: History, action: Action, execute: Awaitable[Outcome | Observation]) -> TurnResult:
        """Executes an action and begins the next one, ahead of the observation where it can.

        Args:
            history: The real history, ending in the observation the action was chosen on.
            action: The action; normally the one generated for ``history``. Another one is legal.
            execute: The tool call: resolves to the observation, or to an :class:`~obsspec_gym.types.Outcome` when the
                episode may end or the policy reads more than the observation. Awaited once (I3).

        Returns:
            The observation and the next action's handle.

        Raises:
            BaseException: What ``execute`` raised; the episode's futures are then gone.
        """
        loop = asyncio.get_running_loop()
        tool = asyncio.ensure_future(execute)
        try:
            futures = self._enter(history)
            acted = self._act(futures, action)
            futures.budget, futures.began = self._selector.budget(acted), loop.time()
            growth = self._growth.begin(futures, acted) if self._growth else None
            try:
                outcome = _as_outcome(await tool)
            finally:
                if growth is not None:
                    growth.cancel()
            return self._commit(futures, acted, outcome)
        except BaseException:
            tool.cancel()
            self.end(history.episode)
            raise

    def _commit(self, futures: Futures, acted: History, outcome: Outcome) -> TurnResult:
        """Verifies the predictions; keeps the future that came true, or generates from the truth."""
        now = asyncio.get_running_loop().time()
        root, tool = futures.root, Span(futures.began, now)
        children = list(root.children.values())
        late = root.branching is not None and not root.branching.done()
        real = self._observed(acted, outcome, children)
        kept, discarded = futures.commit(real, outcome.ends)
        futures.began = now  # what comes in from here on is about a tool that has not begun
        record = self._recorder.end(root, real, outcome, futures.budget, tool, children, discarded, late)
        self._selector.observe(acted, record)
        if self._predictor is not None:
            self._predictor.observe(Transition(acted, outcome, tool.seconds))
        if outcome.ends:
            self.end(acted.episode)
            return TurnResult(outcome.observation, None)
        if kept is None:
            futures.replace_root(self._real(real, draft=_best_draft(children)))
        elif kept.generation is not None:
            kept.committed = now
            kept.generation.promote()
        return TurnResult(outcome.observation, self._handle(futures.root, hit=kept is not None))

    def _observed(self, acted: History, outcome: Outcome, children: Sequence[Future]) -> History:
        """The history with the real observation: that of the prediction that came true, or a new one."""
        for child in children:  # the same text need not be encoded again
            if _foretold(child.prediction, outcome) and child.history.parent == acted:
                return child.history
        tokens = () if outcome.ends else self.policy.encode_observation(acted, outcome.observation)
        return acted.observe(outcome.observation, tokens, outcome.visible)

    def _real(self, history: History, draft: TokenIds = ()) -> Future:
        future = Future(history, self._generate(history, Priority.COMMITTED, draft), _now())
        future.draft = len(draft)
        return future

    def _generate(self, history: History, priority: Priority, draft: TokenIds = ()) -> Generation:
        seed = turn_seed(self._run_seed, self._policy_step, history.episode, history.turn)
        return self.policy.generate(history, seed=seed, priority=priority, draft=draft)

    def _enter(self, history: History) -> Futures:
        """The futures whose root is ``history``; a caller may come with a history of its own making."""
        futures = self._episodes.get(history.episode)
        if futures is None or futures.root.history != history:
            if futures is not None:
                futures.close()
            futures = Futures(Future(history, None, _now()), self._max_futures)
            self._episodes[history.episode] = futures
        return futures

    def _act(self, futures: Futures, action: Action) -> History:
        """The history with the action: as it was sampled, or encoded where it came from elsewhere."""
        root = futures.root
        completion = completion_of(root)
        if completion is not None and _same_action(self.policy.parse(completion), action):
            return root.history.act(action, completion.token_ids)
        # Nobody takes what was generated here; what was foreseen after it can no longer come true (I5).
        self._recorder.drop(root.history.episode, futures.close())
        root.generation = None
        return root.history.act(action, self.policy.encode_action(action))

    def end(self, episode: EpisodeId) -> None:
        """Ends an episode: cancels all that is under way for it. Idempotent."""
        futures = self._episodes.pop(episode, None)
        self._recorder.forget(episode)
        self._selector.forget(episode)
        if futures is not None:
            futures.close()

    def update_weights(self, policy_step: int) -> None:
        """Is told that the policy's weights have changed: drops every uncommitted future (I7).

        Args:
            policy_step: Optimiser steps the new weights have had; part of all later seeds.
        """
        self._policy_step = policy_step
        for episode, futures in self._episodes.items():
            self._recorder.drop(episode, futures.drop())

    async def close(self) -> None:
        """Ends every episode and waits for what was cancelled. Idempotent."""
        for episode in list(self._episodes):
            self.end(episode)
        if self._predictor is not None:
            self._predictor.close()
        if self._growth is not None:
            await self._growth.close()

    def _handle(self, root: Future, hit: bool) -> NextAction:
        assert root.generation is not None
        return NextAction(root.history, root.generation, self.policy, hit)


def _as_outcome(result: Outcome | Observation) -> Outcome:
    return result if isinstance(result, Outcome) else Outcome(result)


def _foretold(prediction: Prediction | None, outcome: Outcome) -> bool:
    """Whether a prediction is, text for text, what happened."""
    if prediction is None or prediction.ends or outcome.ends:
        return False
    told, came = prediction.observation, outcome.observation
    return type(told) is type(came) is str and told == came and prediction.visible is None and outcome.visible is None


def _same_action(left: Action, right: Action) -> bool:
    return left is right or fingerprint(left) == fingerprint(right)


def _best_draft(discarded: Sequence[Future]) -> TokenIds:
    """What the likeliest discarded future had generated: the same turn, the same noise, almost the same history."""
    drafts = [
        (future.prediction.probability if future.prediction else 0.0, future.generation.partial())
        for future in discarded
        if future.generation is not None
    ]
    return max(drafts, key=lambda draft: (bool(draft[1]), draft[0]), default=(0.0, ()))[1]


def _now() -> float:
    return asyncio.get_running_loop().time()
