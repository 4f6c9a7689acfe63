"""The turn: execute and predict, generate ahead, verify, commit.

Everything else in this room (the vector wrapper, free-running collection, the trainer's rollouts) calls
:meth:`Speculator.turn`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from obsspec_gym.agents.generation import Generation
from obsspec_gym.agents.history import History, fingerprint
from obsspec_gym.agents.policy import Policy, Served, as_policy
from obsspec_gym.agents.world_model.base import WorldModel
from obsspec_gym.errors import InvalidArgumentError, ObsSpecError
from obsspec_gym.seeding import turn_seed
from obsspec_gym.speculation.adaptive import AdaptiveSelector
from obsspec_gym.speculation.futures import Future, Futures, completion_of
from obsspec_gym.speculation.next_action import NextAction, TurnResult
from obsspec_gym.speculation.predictor import Patience, Predictor, as_world_model
from obsspec_gym.speculation.record import TurnRecord
from obsspec_gym.speculation.recorder import TurnRecorder
from obsspec_gym.speculation.selector import Budget, Candidate, Off, Selector
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
        if isinstance(self.policy, Served):
            self._selector.attach(self.policy.load)
        self._run_seed = run_seed
        self._policy_step = policy_step
        self._max_futures = max_futures
        self._recorder = TurnRecorder(on_turn)
        self._episodes: dict[EpisodeId, Futures] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def world_model_failures(self) -> dict[str, int]:
        """How often the world model failed, by reason."""
        return dict(self._predictor.failures) if self._predictor else {}

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
            budget = self._selector.budget(acted)
            began = loop.time()
            self._recorder.begin(futures, acted, budget, began)
            growth = self._begin_growth(futures, acted, budget, began)
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
        children = list(futures.root.children.values())
        late = futures.root.branching is not None and not futures.root.branching.done()
        tokens = () if outcome.ends else self.policy.encode_observation(acted, outcome.observation)
        real = acted.observe(outcome.observation, tokens, outcome.visible)
        kept, discarded = futures.commit(real, outcome.ends)
        record = self._recorder.end(acted, real, outcome, children, discarded, late, now)
        self._selector.observe(acted, record)
        if self._predictor is not None:
            self._predictor.observe(Transition(acted, outcome, record.tool.seconds))
        if outcome.ends:
            self.end(acted.episode)
            return TurnResult(outcome.observation, None)
        if kept is None:
            futures.replace_root(self._real(real, draft=_best_draft(children)))
        elif kept.generation is not None:
            kept.committed = now
            kept.generation.promote()
        return TurnResult(outcome.observation, self._handle(futures.root, hit=kept is not None))

    def _begin_growth(
        self, futures: Futures, acted: History, budget: Budget, began: float
    ) -> asyncio.Task[None] | None:
        """Asks what ``acted`` brings; what goes on below that is the task that is returned, if there is any."""
        if self._predictor is None or budget.depth < 1:
            return None
        self._ask(futures, futures.root, acted, budget, began, 1)
        return self._spawn(self._grow(futures, futures.root, budget, began, 1)) if budget.depth > 1 else None

    def _ask(self, futures: Futures, future: Future, acted: History, budget: Budget, began: float, level: int) -> None:
        """Has the world model predict what ``acted`` brings, and generates ahead on every prediction."""
        if future.branching is None:
            known = asyncio.get_running_loop().time()
            future.branching = self._spawn(self._branch(futures, future, acted, budget, began, level, known))
        else:
            self._reconsider(future, acted, budget, began, level)

    def _reconsider(self, future: Future, acted: History, budget: Budget, began: float, level: int) -> None:
        """Generates on predictions that were declined when what they follow was itself only possible."""
        elapsed = asyncio.get_running_loop().time() - began
        for child in future.children.values():
            if child.chance > 0 or child.prediction is None or child.prediction.ends:
                continue
            chance = self._selector.chance(Candidate(acted, child.prediction, child.rank, level, 1.0, elapsed, budget))
            if chance > 0:
                child.begin(chance, self._generate(child.history, Priority.SPECULATIVE), _clock())

    async def _grow(self, futures: Futures, future: Future, budget: Budget, began: float, level: int) -> None:
        """Goes on below a future's predictions, once they are there."""
        assert future.branching is not None
        await asyncio.wait({future.branching})
        children = [child for child in future.children.values() if child.generation is not None]
        below = [self._grow_below(futures, child, budget, began, level + 1) for child in children]
        await _all([self._spawn(work) for work in below])

    async def _grow_below(self, futures: Futures, future: Future, budget: Budget, began: float, level: int) -> None:
        """Goes on below a future as soon as its action is known."""
        if future.generation is None:
            return
        try:
            completion = await future.generation
        except ObsSpecError:
            return  # cancelled, or the engine failed: then nothing follows it
        if future.given_up:
            return  # at this very moment: this task's own cancellation is still on its way down to it
        acted = future.history.act(self.policy.parse(completion), completion.token_ids)
        self._ask(futures, future, acted, budget, began, level)
        if level < budget.depth:
            await self._grow(futures, future, budget, began, level)

    async def _branch(
        self, futures: Futures, parent: Future, acted: History, budget: Budget, began: float, level: int, known: float
    ) -> None:
        """Asks the world model and files a future for each of its predictions."""
        assert self._predictor is not None
        loop = asyncio.get_running_loop()
        asked = loop.time()
        predictions = await self._predictor.predict(acted, budget.breadth)
        ready = loop.time()
        for rank, prediction in enumerate(predictions):
            if futures.full:
                return
            reached = parent.chance if level > 1 else 1.0
            try:
                chance = self._selector.chance(
                    Candidate(acted, prediction, rank, level, reached, ready - began, budget)
                )
                future = self._possible(acted, prediction, rank, chance)
            except Exception as error:  # noqa: BLE001 - boundary I4: an unusable prediction costs only itself
                self._predictor.reject(f"unusable prediction: {type(error).__name__}: {error}")
                continue
            future.action_known, future.prediction_started, future.prediction_ready = known, asked, ready
            futures.add(parent, future)

    def _possible(self, acted: History, prediction: Prediction, rank: int, chance: float) -> Future:
        """A future for one prediction: its generation starts, unless it is declined or predicted to end."""
        tokens = () if prediction.ends else self.policy.encode_observation(acted, prediction.observation)
        history = acted.observe(prediction.observation, tokens, prediction.visible)
        generation = None if prediction.ends or chance <= 0 else self._generate(history, Priority.SPECULATIVE)
        return Future(history, generation, _clock(), prediction, rank, chance)

    def _real(self, history: History, draft: TokenIds = ()) -> Future:
        return Future(history, self._generate(history, Priority.COMMITTED, draft), _clock())

    def _generate(self, history: History, priority: Priority, draft: TokenIds = ()) -> Generation:
        seed = turn_seed(self._run_seed, self._policy_step, history.episode, history.turn)
        return self.policy.generate(history, seed=seed, priority=priority, draft=draft)

    def _enter(self, history: History) -> Futures:
        """The futures whose root is ``history``; a caller may come with a history of its own making."""
        futures = self._episodes.get(history.episode)
        if futures is None or futures.root.history != history:
            if futures is not None:
                futures.close()
            futures = Futures(Future(history, None, _clock()), self._max_futures)
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
        for task in self._tasks:
            task.cancel()
        await _all(list(self._tasks))

    def _handle(self, root: Future, hit: bool) -> NextAction:
        assert root.generation is not None
        return NextAction(root.history, root.generation, self.policy, hit)

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _as_outcome(result: Outcome | Observation) -> Outcome:
    return result if isinstance(result, Outcome) else Outcome(result)


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


def _clock() -> Callable[[], float]:
    return asyncio.get_running_loop().time


async def _all(tasks: list[asyncio.Task[Any]]) -> None:
    """Waits for tasks, and cancels them if it is cancelled itself."""
    if not tasks:
        return
    try:
        await asyncio.wait(tasks)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        raise
