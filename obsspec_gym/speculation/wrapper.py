"""Gymnasium's side: a vector environment whose policy thinks while the tools run."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import concatenate, create_empty_array, iterate

from obsspec_gym.agents.history import History
from obsspec_gym.agents.policy import Policy
from obsspec_gym.agents.world_model.base import WorldModel
from obsspec_gym.errors import ClosedError, InvalidArgumentError
from obsspec_gym.seeding import derive_seed
from obsspec_gym.speculation.loop import LoopThread
from obsspec_gym.speculation.next_action import NextAction
from obsspec_gym.speculation.record import TurnRecord
from obsspec_gym.speculation.selector import Selector
from obsspec_gym.speculation.speculator import Speculator
from obsspec_gym.speculation.stepping import Row, Stepper, stepper_for
from obsspec_gym.types import Action, EpisodeId, Outcome

logger = logging.getLogger(__name__)

Batch = tuple[Any, np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any], dict[str, Any]]


class ActionHandle:
    """The next action of one environment, for callers outside the event loop.

    ``infos["next_action"][i]`` is one wherever the observation came as predicted: its generation is ahead.
    """

    __slots__ = ("_loop", "_pending")

    def __init__(self, pending: NextAction, loop: LoopThread) -> None:
        self._pending = pending
        self._loop = loop

    def done(self) -> bool:
        """Whether the action is there."""
        return self._pending.done()

    def result(self) -> Action:
        """Waits for the action.

        Raises:
            ObsSpecError: If its generation failed, or was released because nobody took it.
        """
        return self._loop.run(_await(self._pending))


class ObsSpecVectorEnv(VectorWrapper):
    """Adds observation speculation to any vector environment.

    While :meth:`step` waits for the tools, the world model predicts what they will answer and the policy generates
    its next actions from the predictions. :meth:`act` returns every environment's next action: those whose observation
    came as predicted are (nearly) done, the others start from the truth. Actions and trajectories are exactly what
    they would be without speculation.

    Args:
        env: A vector environment. Speculation pays most where environments do not wait for each other
            (``TerminalVectorEnv``); over Sync- and AsyncVectorEnv every step lasts as long as its slowest.
        policy: A policy, or a function ``(history, seed) -> action``.
        world_model: A world model, or a function ``(history, action) -> observation``; ``None`` for none.
        speculation: How far ahead to speculate; by default ``FixedSelector(1, 1)``.
        run_seed: Determines, with the episodes' names, every completion.
        on_turn: Is called (on the loop's thread) with the record of every turn.

    Raises:
        InvalidArgumentError: If ``env`` is not a vector environment.

    Example:
        >>> import gymnasium as gym
        >>> envs = gym.make_vec("FrozenLake-v1", num_envs=2, vectorization_mode="sync", is_slippery=False)
        >>> envs = ObsSpecVectorEnv(envs, policy=lambda history, seed: seed % 4)
        >>> observations, infos = envs.reset(seed=0)
        >>> actions = envs.act()
        >>> observations, rewards, terminated, truncated, infos = envs.step(actions)
        >>> envs.close()
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        policy: Policy | Callable[[History, int], Any],
        world_model: WorldModel | Callable[[History, Action], Any] | None = None,
        speculation: Selector | None = None,
        *,
        run_seed: int = 0,
        on_turn: Callable[[TurnRecord], None] | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(env, VectorEnv):
            raise InvalidArgumentError(f"env must be a gymnasium vector environment, got {type(env).__name__}")
        super().__init__(env)
        self.speculator = Speculator(policy, world_model, speculation, run_seed=run_seed, on_turn=on_turn, **options)
        self._autoreset = AutoresetMode(env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        self._loop = LoopThread()
        self._stepper: Stepper = stepper_for(env)
        if self._stepper.barrier and world_model is not None:
            logger.warning(
                "%s waits for its slowest environment at every step, so speculation can only use the time until then; "
                "environments that run on their own (TerminalVectorEnv) gain most",
                type(env).__name__,
            )
        self._names = _EpisodeNames(self.num_envs)
        self._pending: list[NextAction | None] = [None] * self.num_envs
        self._over = np.ones(self.num_envs, dtype=np.bool_)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Resets the environments (or those of ``options["reset_mask"]``) and starts their first generations."""
        self._require_open()
        mask = None if options is None else options.get("reset_mask")
        chosen = np.ones(self.num_envs, dtype=np.bool_) if mask is None else np.asarray(mask, dtype=np.bool_)
        self._loop.run(self._release(chosen))
        observations, infos = self.env.reset(
            seed=seed,  # type: ignore[arg-type]  # Gymnasium's vector environments take sequences too
            options=None if options is None else dict(options),
        )
        self._names.reseed(seed, chosen)
        rows = self._rows(observations)
        self._loop.run(self._begin([(i, rows[i], infos) for i in np.flatnonzero(chosen)]))
        return observations, self._with_handles(infos)

    def act(self, mask: Sequence[bool] | np.ndarray[Any, Any] | None = None) -> Any:
        """The next action of every environment, as a batch of the action space.

        Args:
            mask: Which environments are asked for, shape ``(num_envs,)``; by default all. The others, and those whose
                episode is over, get a placeholder that the environment ignores.

        Raises:
            ResetNeeded: Before the first reset.
            ObsSpecError: If a generation failed.
        """
        self._require_open()
        if all(pending is None for pending in self._pending) and self._over.all():
            raise gym.error.ResetNeeded("act() needs reset() before it")
        wanted = np.ones(self.num_envs, dtype=np.bool_) if mask is None else np.asarray(mask, dtype=np.bool_)
        if wanted.shape != (self.num_envs,):
            raise InvalidArgumentError(f"mask must have shape ({self.num_envs},), got {wanted.shape}")
        pending = [handle if wanted[i] else None for i, handle in enumerate(self._pending)]
        actions = self._loop.run(_await_all(pending))
        placeholder = next(iter(iterate(self.action_space, create_empty_array(self.single_action_space, 1))))
        filled = [placeholder if handle is None else action for handle, action in zip(pending, actions, strict=True)]
        empty = create_empty_array(self.single_action_space, self.num_envs)
        return concatenate(self.single_action_space, filled, empty)  # type: ignore[arg-type]

    def step(self, actions: Any) -> Batch:
        """Executes the actions; meanwhile predicts and generates ahead.

        Args:
            actions: One for each environment: what :meth:`act` returned, or others.

        Returns:
            As ``VectorEnv.step``; ``infos["next_action"]`` holds an :class:`ActionHandle` wherever the mask
            ``infos["_next_action"]`` says that the observation came as predicted.

        Raises:
            InvalidArgumentError: If there are more or fewer actions than environments; nothing was sent.
        """
        self._require_open()
        if len(actions) != self.num_envs:
            raise InvalidArgumentError(f"actions must be {self.num_envs}, one for each environment, got {len(actions)}")
        return self._loop.run(self._step(actions))

    async def _step(self, actions: Any) -> Batch:
        each = list(iterate(self.action_space, actions))
        calls = self._stepper.start(actions, each)
        turns = [self._turn(i, each[i], call) for i, call in enumerate(calls)]
        results = await asyncio.gather(*turns, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        batch = self._stepper.finish()
        infos = batch[4]
        begun = [
            (i, row.observation, infos) for i, row in enumerate(await asyncio.gather(*calls)) if self._begins(i, row)
        ]
        self._over = batch[2] | batch[3]
        await self._begin(begun)
        return (*batch[:4], self._with_handles(infos))

    async def _turn(self, index: int, action: Action, call: asyncio.Future[Row]) -> None:
        """One environment's turn; a step that only resets is not one."""
        pending = self._pending[index]
        if pending is None:
            await call
            return

        async def execute() -> Outcome:
            row = await call
            return Outcome(row.last_observation, ends=row.terminated or row.truncated)

        self._pending[index] = None
        _, self._pending[index] = await self.speculator.turn(pending.history, action, execute=execute())

    def _begins(self, index: int, row: Row) -> bool:
        """Whether this step's observation is the first of a new episode."""
        ends = row.terminated or row.truncated
        if self._autoreset is AutoresetMode.SAME_STEP:
            return ends
        return bool(self._over[index]) and not ends and self._pending[index] is None

    async def _begin(self, begun: list[tuple[Any, Any, dict[str, Any]]]) -> None:
        for index, observation, infos in begun:
            episode = self._names.next(int(index), infos)
            self._pending[index] = self.speculator.start(episode, observation)
            self._over[index] = False

    async def _release(self, mask: np.ndarray[Any, Any]) -> None:
        for index in np.flatnonzero(mask):
            pending, self._pending[index] = self._pending[index], None
            if pending is not None:
                self.speculator.end(pending.history.episode)

    def _with_handles(self, infos: dict[str, Any]) -> dict[str, Any]:
        handles = np.full(self.num_envs, None, dtype=object)
        for index, pending in enumerate(self._pending):
            if pending is not None and pending.hit:
                handles[index] = ActionHandle(pending, self._loop)
        return {**infos, "next_action": handles, "_next_action": handles != np.array(None)}

    def _rows(self, observations: Any) -> list[Any]:
        return list(iterate(self.observation_space, observations))

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Forwards to the wrapped environment."""
        return self.env.call(name, *args, **kwargs)  # type: ignore[attr-defined, no-any-return]

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Forwards to the wrapped environment."""
        return self.env.get_attr(name)  # type: ignore[attr-defined, no-any-return]

    def set_attr(self, name: str, values: Any) -> None:
        """Forwards to the wrapped environment."""
        self.env.set_attr(name, values)  # type: ignore[attr-defined]

    def close(self, **kwargs: Any) -> None:
        """Cancels every generation, ends the loop's thread and closes the environment. Idempotent."""
        if self._loop.closed:
            return
        try:
            if self._loop.started:
                self._loop.run(self.speculator.close())
        finally:
            self._loop.close()
            self._stepper.close()
            self._pending = [None] * self.num_envs
            self.env.close(**kwargs)

    def _require_open(self) -> None:
        if self._loop.closed:
            raise ClosedError("the vector environment is closed")


class _EpisodeNames:
    """Names episodes so that seeds depend on the user's seed and never on which environment finished first."""

    def __init__(self, num_envs: int) -> None:
        root = secrets.randbits(31)
        self._seeds = [derive_seed("unseeded", root, i) for i in range(num_envs)]
        self._counts = [0] * num_envs

    def reseed(self, seed: int | Sequence[int | None] | None, chosen: np.ndarray[Any, Any]) -> None:
        for index in np.flatnonzero(chosen):
            own = seed + int(index) if isinstance(seed, int) else None if seed is None else seed[int(index)]
            if own is not None:
                self._seeds[index], self._counts[index] = int(own), 0

    def next(self, index: int, infos: dict[str, Any]) -> EpisodeId:
        """The name of the environment's next episode: the task it says it has, or its seed."""
        seed, count = self._seeds[index], self._counts[index]
        self._counts[index] += 1
        told = infos.get("_task_id")
        if told is not None and told[index]:
            return EpisodeId(str(infos["task_id"][index]), derive_seed("sample", seed, count) % 2**31)
        return EpisodeId(f"seed {seed}", count)


async def _await(pending: NextAction) -> Action:
    return await pending


async def _await_all(pending: list[NextAction | None]) -> list[Action]:
    return [None if handle is None else await handle for handle in pending]
