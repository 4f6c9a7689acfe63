"""One Gymnasium environment whose policy thinks while the environment steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, SupportsFloat

import gymnasium as gym
from gymnasium.utils import RecordConstructorArgs

from obsspec_gym.agents.history import History
from obsspec_gym.agents.policy import Policy
from obsspec_gym.agents.world_model.base import WorldModel
from obsspec_gym.errors import ClosedError, InvalidArgumentError
from obsspec_gym.speculation.conform import conform, conforming_policy, conforming_world_model
from obsspec_gym.speculation.episode_names import EpisodeNames
from obsspec_gym.speculation.loop import LoopThread
from obsspec_gym.speculation.next_action import NextAction
from obsspec_gym.speculation.record import TurnRecord
from obsspec_gym.speculation.selector import Selector
from obsspec_gym.speculation.speculator import Speculator
from obsspec_gym.speculation.stepping import View, Viewer, begun_future
from obsspec_gym.speculation.wrapper import ActionHandle
from obsspec_gym.types import Action, EpisodeId, Outcome

StepResult = tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]


class ObsSpecEnv(gym.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Adds observation speculation to one environment: :class:`ObsSpecVectorEnv` without the vector.

    While :meth:`step` runs the environment, on the caller's own thread, the world model predicts what it will answer
    and the policy generates its next action from that. :meth:`act` returns the next action. What ``reset`` and
    ``step`` return is the environment's, untouched; actions are exactly what they would be without speculation.

    Args:
        env: The environment.
        policy: A policy, or a function ``(history, seed) -> action``; ``history.value`` is the observation.
        world_model: A world model, or a function ``(history, action) -> observation``; ``None`` for none.
        speculation: How far ahead to speculate; by default the speculator's choice.
        visible: Names of the entries of ``info`` that the policy reads, in ``history.visible``.
        run_seed: Determines, with the episodes' names, every completion.
        on_turn: Is called (on the loop's thread) with the record of every turn.
        **options: Further arguments of :class:`~obsspec_gym.speculation.speculator.Speculator`.

    Raises:
        InvalidArgumentError: If ``env`` is not an environment.

    Example:
        >>> env = ObsSpecEnv(gym.make("FrozenLake-v1", is_slippery=False), policy=lambda history, seed: seed % 4)
        >>> observation, info = env.reset(seed=0)
        >>> observation, reward, terminated, truncated, info = env.step(env.act())
        >>> env.close()
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        policy: Policy | Callable[[History, int], Any],
        world_model: WorldModel | Callable[[History, Action], Any] | None = None,
        speculation: Selector | None = None,
        *,
        visible: Sequence[str] = (),
        run_seed: int = 0,
        on_turn: Callable[[TurnRecord], None] | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(env, gym.Env):
            raise InvalidArgumentError(f"env must be a gymnasium environment, got {type(env).__name__}")
        keywords = {"visible": visible, "run_seed": run_seed, "on_turn": on_turn, **options}
        RecordConstructorArgs.__init__(
            self, _disable_deepcopy=True, policy=policy, world_model=world_model, speculation=speculation, **keywords
        )
        gym.Wrapper.__init__(self, env)
        self.speculator = Speculator(
            conforming_policy(policy, env.action_space),
            conforming_world_model(world_model, env.observation_space),
            speculation,
            run_seed=run_seed,
            on_turn=on_turn,
            **options,
        )
        self._loop = LoopThread()
        self._viewer = Viewer(env.observation_space, visible)
        self._names = EpisodeNames(1)
        self._pending: NextAction | None = None

    @property
    def next_action(self) -> ActionHandle | None:
        """The next action's handle where the last observation came as predicted, so that it is ahead."""
        pending = self._pending
        return ActionHandle(pending, self._loop) if pending is not None and pending.hit else None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets the environment and starts generating the first action."""
        self._require_open()
        self._release()
        observation, info = self.env.reset(seed=seed, options=options)
        self._names.reseed(seed, [0])
        view = self._viewer.of(observation, info)
        self._pending = self._loop.run(self._start(self._names.next(0, info), view))
        return observation, info

    def act(self) -> Action:
        """The next action.

        Raises:
            ResetNeeded: Before the first reset, after an episode's end, and after a step that raised.
            ObsSpecError: If its generation failed.
        """
        self._require_open()
        if self._pending is None:
            raise gym.error.ResetNeeded("act() needs an episode under way: reset() first")
        return ActionHandle(self._pending, self._loop).result()

    def step(self, action: Action) -> StepResult:
        """Executes an action; meanwhile predicts and generates ahead.

        Args:
            action: What :meth:`act` returned, or another one.
        """
        self._require_open()
        pending, self._pending = self._pending, None
        if pending is None:  # nothing to speculate on: whether this is legal is the environment's to say
            return self.env.step(action)
        sent: Future[Outcome] = begun_future()
        turn = self._loop.start(self._turn(pending.history, conform(self.action_space, action), sent))
        try:
            result = self.env.step(action)
            observation, _, terminated, truncated, info = result
            view = self._viewer.of(observation, info)
            sent.set_result(Outcome(view.observation, bool(terminated or truncated), view.visible))
            self._pending = turn.result()
        except BaseException:
            turn.cancel()
            self._loop.run(self._end(pending.history.episode))
            raise
        return result

    async def _start(self, episode: EpisodeId, view: View) -> NextAction:
        return self.speculator.start(episode, view.observation, view.visible)

    async def _turn(self, history: History, action: Action, sent: Future[Outcome]) -> NextAction | None:
        async def execute() -> Outcome:
            return await asyncio.wrap_future(sent)

        return (await self.speculator.turn(history, action, execute=execute())).next_action

    async def _end(self, episode: EpisodeId) -> None:
        self.speculator.end(episode)

    def _release(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            self._loop.run(self._end(pending.history.episode))

    def close(self) -> None:
        """Cancels every generation, ends the loop's thread and closes the environment. Idempotent."""
        if self._loop.closed:
            return
        try:
            if self._loop.started:
                self._loop.run(self.speculator.close())
        finally:
            self._loop.close()
            self._pending = None
            self.env.close()

    def _require_open(self) -> None:
        if self._loop.closed:
            raise ClosedError("the environment is closed")
