"""The experiment: the same seeded episodes without speculation, with it, and with an oracle.

result = run_modes(make_envs, episodes, make_policy, make_world_model)
print(result.agent_latency_ratio, result.share_of_d_limit, result.comparison.summary())
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from obsspec_gym.agents.history import History
from obsspec_gym.agents.policy import Policy
from obsspec_gym.agents.world_model.base import WorldModel
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.speculation.collector import Collection, collect_async
from obsspec_gym.speculation.metrics import measure
from obsspec_gym.speculation.oracle import RecordedOracle
from obsspec_gym.speculation.record import TurnRecord
from obsspec_gym.speculation.results import ExperimentResult, Mode, Run
from obsspec_gym.speculation.selector import FixedSelector, Off, Selector
from obsspec_gym.speculation.slot import Episode
from obsspec_gym.speculation.trajectory import Trajectory
from obsspec_gym.types import Action, EpisodeId

UNBOUNDED_DEPTH = 1000
"""Deeper than any episode is long."""


@runtime_checkable
class Closes(Protocol):
    """Owns something."""

    def close(self) -> None:
        """Releases it."""
        ...


@dataclass(frozen=True)
class Experiment:
    """What is run. Each run has environments, policy and world model of its own: no mode knows what another learnt.

    Attributes:
        make_envs: Makes the environments of one run (see :func:`~obsspec_gym.speculation.collector.collect`).
        episodes: The episodes of every run.
        make_policy: Makes the policy of one run. One that shares an engine with other runs must begin with an empty
            cache, or the later modes are faster for reasons of their own.
        make_world_model: Makes the world model of one speculative run.
        modes: What to run, in this order; in each further repeat the order moves by one.
        make_selector: Makes the selector of one speculative run; the oracle speculates as deep as that one may.
        repeats: How often.
        run_seed: Seeds the completions, equally in every run.
        before_run: Is awaited with the policy and the world model (or ``None``) before a run's time begins, such as
            :func:`warm_up`.
        on_begin: Is called with mode and repeat before a run.
        on_turn: Is called with each turn's record.
        on_trajectory: Is called with each finished trajectory.
    """

    make_envs: Callable[[], Any]
    episodes: Sequence[Episode]
    make_policy: Callable[[], Policy | Callable[[History, int], Any]]
    make_world_model: Callable[[], WorldModel | Callable[[History, Action], Any]]
    modes: Sequence[Mode] = (Mode.SEQUENTIAL, Mode.SPECULATIVE, Mode.ORACLE)
    make_selector: Callable[[], Selector] = FixedSelector
    repeats: int = 1
    run_seed: int = 0
    before_run: Callable[[Any, Any], Awaitable[None]] | None = None
    on_begin: Callable[[Mode, int], None] | None = None
    on_turn: Callable[[TurnRecord], None] | None = None
    on_trajectory: Callable[[Trajectory], None] | None = None

    def __post_init__(self) -> None:
        if self.repeats < 1:
            raise InvalidArgumentError(f"repeats must be >= 1, got {self.repeats}")
        if not self.episodes or not self.modes:
            raise InvalidArgumentError("an experiment needs at least one episode and one mode")
        first = self.modes[0]
        if first is not Mode.SEQUENTIAL and {Mode.ORACLE, Mode.LIMIT} & set(self.modes):
            raise InvalidArgumentError(
                f"an oracle answers from a sequential run, so that is the first, not {first.value}"
            )

    async def run(self) -> ExperimentResult:
        """Runs every mode ``repeats`` times; what a run owned is closed when it ends, however it ends."""
        runs: list[Run] = []
        record: Collection | None = None
        for repeat in range(self.repeats):
            shift = repeat % len(self.modes)
            for mode in (*self.modes[shift:], *self.modes[:shift]):
                collection = await self._collect(mode, repeat, record)
                if mode is Mode.SEQUENTIAL:
                    record = collection
                runs.append(Run(mode, repeat, collection, measure(collection)))
        return ExperimentResult(tuple(runs))

    async def _collect(self, mode: Mode, repeat: int, record: Collection | None) -> Collection:
        if self.on_begin is not None:
            self.on_begin(mode, repeat)
        with ExitStack() as owned:
            policy = _owned(owned, self.make_policy())
            world_model = _owned(owned, self._world_model(mode, record))
            envs = _owned(owned, self.make_envs())
            if self.before_run is not None:
                await self.before_run(policy, world_model)
            return await collect_async(
                envs,
                self.episodes,
                policy,
                world_model,
                self._selector(mode),
                run_seed=self.run_seed,
                on_turn=self.on_turn,
                on_trajectory=self.on_trajectory,
            )

    def _world_model(self, mode: Mode, record: Collection | None) -> Any:
        if mode is Mode.SPECULATIVE:
            return self.make_world_model()
        if mode is Mode.SEQUENTIAL or record is None:
            return None
        return RecordedOracle(record.trajectories)

    def _selector(self, mode: Mode) -> Selector:
        if mode is Mode.SEQUENTIAL:
            return Off()
        if mode is Mode.LIMIT:
            return FixedSelector(UNBOUNDED_DEPTH, 1)
        return self.make_selector() if mode is Mode.SPECULATIVE else FixedSelector(self.make_selector().depth, 1)


def run_modes(
    make_envs: Callable[[], Any],
    episodes: Sequence[Episode],
    make_policy: Callable[[], Policy | Callable[[History, int], Any]],
    make_world_model: Callable[[], WorldModel | Callable[[History, Action], Any]],
    **options: Any,
) -> ExperimentResult:
    """Runs an experiment on an event loop of its own; arguments as of :class:`Experiment`.

    Raises:
        InvalidArgumentError: Before anything is run.
        RuntimeError: If called from a running event loop: await :meth:`Experiment.run` there.
    """
    return asyncio.run(Experiment(make_envs, episodes, make_policy, make_world_model, **options).run())


async def warm_up(policy: Policy, world_model: WorldModel | None) -> None:
    """Has a language-model policy act, and a world model predict, in an episode of nobody's.

    What an engine needs to start is then in no run's time.
    """
    first = "warm up"
    history = History.start(EpisodeId(first), first, policy.encode_observation(None, first))
    await policy.generate(history, seed=0)
    if world_model is not None:
        await world_model.predict(history, "true", 1)


def _owned(stack: ExitStack, thing: Any) -> Any:
    """Closes a thing with the stack, if it can be closed."""
    if isinstance(thing, Closes):
        stack.callback(thing.close)
    elif isinstance(thing, Sequence):
        for each in thing:
            _owned(stack, each)
    return thing
