"""Gymnasium's side: a vector environment whose policy thinks while the tools run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import concatenate, create_empty_array, iterate

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
from obsspec_gym.speculation.stepping import Batch, Row, Stepper, View, Viewer, pick, stepper_for
from obsspec_gym.types import Action, Outcome

logger = logging.getLogger(__name__)

Mask = np.ndarray[Any, np.dtype[np.bool_]]


class NotABatchError(InvalidArgumentError, TypeError):
    """Actions that are no batch at all: where Gymnasium's vector environments raise a ``TypeError``."""


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
        policy: A policy, or a function ``(history, seed) -> action``; ``history.value`` is the observation.
        world_model: A world model, or a function ``(history, action) -> observation``; ``None`` for none. What it
            predicts is brought into the observation space's form before it is compared with what comes.
        speculation: How far ahead to speculate; by default the speculator's choice.
        visible: Names of the entries of ``info`` that the policy reads (``("action_mask",)``, say). It finds them in
            ``history.visible``, a dictionary. They belong to what a prediction must get right, so a world model has to
            predict them as well (``Prediction(..., visible={"action_mask": mask})``).
        run_seed: Determines, with the episodes' names, every completion.
        on_turn: Is called (on the loop's thread) with the record of every turn.
        **options: Further arguments of :class:`~obsspec_gym.speculation.speculator.Speculator`.

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
        visible: Sequence[str] = (),
        run_seed: int = 0,
        on_turn: Callable[[TurnRecord], None] | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(env, VectorEnv):
            raise InvalidArgumentError(f"env must be a gymnasium vector environment, got {type(env).__name__}")
        super().__init__(env)
        self.speculator = Speculator(
            conforming_policy(policy, env.single_action_space),
            conforming_world_model(world_model, env.single_observation_space),
            speculation,
            run_seed=run_seed,
            on_turn=on_turn,
            **options,
        )
        self._predicts = world_model is not None
        self._autoreset = AutoresetMode(env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        self._loop = LoopThread()
        self._viewer = Viewer(env.single_observation_space, visible)
        self._stepper: Stepper = stepper_for(env, self._viewer)
        if self._stepper.barrier and self._predicts:
            logger.warning(
                "%s waits for its slowest environment at every step, so speculation can only use the time until then; "
                "environments that run on their own (TerminalVectorEnv) gain most",
                type(env).__name__,
            )
        self._names = EpisodeNames(self.num_envs)
        self._pending: list[NextAction | None] = [None] * self.num_envs
        self._over = np.ones(self.num_envs, dtype=np.bool_)
        self._begun = self._failed = False

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Resets the environments (or those of ``options["reset_mask"]``) and starts their first generations."""
        self._require_open()
        chosen = self._chosen(None if options is None else options.get("reset_mask"))
        self._loop.run(self._release(chosen))
        self._over[chosen] = True  # and it stays so if the reset fails
        observations, infos = self.env.reset(
            seed=seed,  # type: ignore[arg-type]  # Gymnasium's vector environments take sequences too
            options=None if options is None else dict(options),
        )
        indices = [int(index) for index in np.flatnonzero(chosen)]
        if not isinstance(infos, dict):
            raise InvalidArgumentError(
                f"infos must be a dictionary, got {type(infos).__name__}: put DictInfoToList around this wrapper"
            )
        self._names.reseed(seed, indices)
        each = list(iterate(self.observation_space, observations))
        self._begin([(index, self._viewer.in_batch(each[index], infos, index)) for index in indices], infos)
        self._begun, self._failed = True, False
        return observations, self._with_handles(infos)

    def _chosen(self, mask: Any) -> Mask:
        """Which environments a reset is for; none for a mask that is not one, which the environment will refuse."""
        if mask is None:
            return np.ones(self.num_envs, dtype=np.bool_)
        chosen = np.asarray(mask)
        fits = chosen.shape == (self.num_envs,) and chosen.dtype == np.bool_
        return chosen.copy() if fits else np.zeros(self.num_envs, dtype=np.bool_)

    def act(self, mask: Sequence[bool] | np.ndarray[Any, Any] | None = None) -> Any:
        """The next action of every environment, as a batch of the action space.

        Args:
            mask: Which environments are asked for, shape ``(num_envs,)``; by default all. The others, and those whose
                episode is over, get a placeholder that the environment ignores.

        Raises:
            ResetNeeded: Before the first reset, after a step that raised, and where every episode is over and autoreset
                disabled.
            InvalidArgumentError: If the policy's actions are none of the action space.
            ObsSpecError: If a generation failed.
        """
        self._require_open()
        if self._needs_reset():
            raise gym.error.ResetNeeded("act() needs reset() before it")
        wanted = np.ones(self.num_envs, dtype=np.bool_) if mask is None else np.asarray(mask, dtype=np.bool_)
        if wanted.shape != (self.num_envs,):
            raise InvalidArgumentError(f"mask must have shape ({self.num_envs},), got {wanted.shape}")
        pending = [handle if wanted[i] else None for i, handle in enumerate(self._pending)]
        actions = self._loop.run(_await_all(pending))
        space = self.single_action_space
        placeholder = next(iter(iterate(self.action_space, create_empty_array(space, 1))))
        filled = [placeholder if handle is None else action for handle, action in zip(pending, actions, strict=True)]
        try:
            empty = create_empty_array(space, self.num_envs)
            return concatenate(space, filled, empty)  # type: ignore[arg-type]  # None for a space of no arrays
        except (TypeError, ValueError, KeyError, IndexError) as error:
            raise InvalidArgumentError(f"the policy's actions must be of {space}, got {filled!r:.200}") from error

    def step(self, actions: Any) -> Batch:
        """Executes the actions; meanwhile predicts and generates ahead.

        Args:
            actions: One for each environment: what :meth:`act` returned, or others.

        Returns:
            As ``VectorEnv.step``; where there is a world model ``infos["next_action"]`` holds an :class:`ActionHandle`
            wherever the mask ``infos["_next_action"]`` says that the observation came as predicted.

        Raises:
            InvalidArgumentError: If there are more or fewer actions than environments; nothing was sent.
            ResetNeeded: After a step that raised: its episodes are given up.
        """
        self._require_open()
        if self._failed:
            raise gym.error.ResetNeeded("the last step raised, so nobody knows where its episodes are: reset() first")
        each = self._split(actions)
        turns = self._loop.start(self._turns(each, self._stepper.send(actions, each)))
        try:
            batch = self._stepper.receive()
            results = turns.result()
        except BaseException:
            self._failed = True
            turns.cancel()
            self._loop.run(self._release(np.ones(self.num_envs, dtype=np.bool_)))
            raise
        self._pending = [pending for _, pending in results]
        begun = [(index, row.view) for index, (row, _) in enumerate(results) if self._begins(index, row)]
        self._over = batch[2] | batch[3]
        infos = batch[4]
        self._begin(begun, infos)
        return (*batch[:4], self._with_handles(infos))

    def _needs_reset(self) -> bool:
        disabled = self._autoreset is AutoresetMode.DISABLED
        return self._failed or not self._begun or (disabled and bool(self._over.all()))

    def _split(self, actions: Any) -> list[Action]:
        """One action for each environment, in the form of their space."""
        if isinstance(actions, str | bytes):
            raise NotABatchError(f"actions must be one for each environment, got one {type(actions).__name__}")
        try:
            each = list(iterate(self.action_space, actions))
        except (TypeError, ValueError, KeyError, IndexError) as error:
            raise NotABatchError(f"actions must be a batch of {self.action_space}, got {actions!r:.80}") from error
        if len(each) != self.num_envs:
            raise InvalidArgumentError(f"actions must be {self.num_envs}, one for each environment, got {len(each)}")
        return [conform(self.single_action_space, action) for action in each]

    async def _turns(
        self, actions: Sequence[Action], rows: Sequence[Future[Row]]
    ) -> list[tuple[Row, NextAction | None]]:
        """Every environment's turn; in an error the others are ended too."""
        pairs = enumerate(zip(actions, rows, strict=True))
        turns = [asyncio.ensure_future(self._turn(index, action, row)) for index, (action, row) in pairs]
        try:
            return await asyncio.gather(*turns)
        except BaseException:
            for turn in turns:
                turn.cancel()
            await asyncio.wait(turns)
            raise

    async def _turn(self, index: int, action: Action, sent: Future[Row]) -> tuple[Row, NextAction | None]:
        """One environment's turn; a step that only resets is not one."""
        pending = self._pending[index]
        call = asyncio.wrap_future(sent)
        if pending is None:
            return await call, None

        async def execute() -> Outcome:
            row = await call
            return Outcome(row.last.observation, row.ends, row.last.visible)

        _, following = await self.speculator.turn(pending.history, action, execute=execute())
        return await call, following

    def _begins(self, index: int, row: Row) -> bool:
        """Whether this step's observation is the first of a new episode."""
        if self._autoreset is AutoresetMode.SAME_STEP:
            return row.ends
        return self._begun and bool(self._over[index]) and not row.ends and self._pending[index] is None

    def _begin(self, views: list[tuple[int, View]], infos: dict[str, Any]) -> None:
        """Starts the first generations of new episodes."""
        if not views:
            return
        starting = [(index, view, {"task_id": pick(infos, "task_id", index)}) for index, view in views]

        async def start() -> None:
            for index, view, info in starting:
                episode = self._names.next(index, info)
                self._pending[index] = self.speculator.start(episode, view.observation, view.visible)
                self._over[index] = False

        self._loop.run(start())

    async def _release(self, mask: Mask) -> None:
        for index in np.flatnonzero(mask):
            pending, self._pending[index] = self._pending[index], None
            if pending is not None:
                self.speculator.end(pending.history.episode)

    def _with_handles(self, infos: dict[str, Any]) -> dict[str, Any]:
        if not self._predicts:
            return infos
        handles = np.full(self.num_envs, None, dtype=object)
        for index, pending in enumerate(self._pending):
            if pending is not None and pending.hit:
                handles[index] = ActionHandle(pending, self._loop)
        return {**infos, "next_action": handles, "_next_action": handles != np.array(None)}

    # Sync-, Async- and ThreadVectorEnv have these three; the class VectorEnv declares none: hence the ignored types.

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
            self._pending = [None] * self.num_envs
            self.env.close(**kwargs)

    def close_extras(self, **kwargs: Any) -> None:
        """As :meth:`close`."""
        self.close(**kwargs)

    def _require_open(self) -> None:
        if self._loop.closed:
            raise ClosedError("the vector environment is closed")


async def _await(pending: NextAction) -> Action:
    return await pending


async def _await_all(pending: list[NextAction | None]) -> list[Action]:
    return [None if handle is None else await handle for handle in pending]
