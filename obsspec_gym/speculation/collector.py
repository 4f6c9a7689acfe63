"""Free-running collection: every environment goes on as soon as *its* tool has answered.

trajectories = collect(envs, episodes, policy=policy, world_model=world_model).trajectories
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from obsspec_gym.agents.history import History
from obsspec_gym.agents.policy import Policy
from obsspec_gym.agents.world_model.base import WorldModel
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.speculation.conform import conforming_policy, conforming_world_model
from obsspec_gym.speculation.next_action import NextAction
from obsspec_gym.speculation.record import TurnRecord
from obsspec_gym.speculation.selector import Selector
from obsspec_gym.speculation.slot import Episode, Slot, as_slots, spaces_of
from obsspec_gym.speculation.speculator import Speculator
from obsspec_gym.speculation.stepping import Viewer
from obsspec_gym.speculation.trajectory import Step, Trajectory
from obsspec_gym.types import Action, Completion, Outcome


@dataclass(frozen=True, slots=True)
class Collection:
    """What one collection brought.

    Attributes:
        trajectories: One an episode, in the order of the episodes.
        turns: The record of every turn, in the order in which they were decided.
        seconds: Wall seconds it took (batch latency).
        world_model_failures: How often the world model failed, by reason.
        selector_failures: How often the selector failed over a prediction, by reason.
    """

    trajectories: tuple[Trajectory, ...]
    turns: tuple[TurnRecord, ...]
    seconds: float
    world_model_failures: dict[str, int]
    selector_failures: dict[str, int] = field(default_factory=dict)


def collect(
    environments: Any,
    episodes: Sequence[Episode],
    policy: Policy | Callable[[History, int], Any],
    world_model: WorldModel | Callable[[History, Action], Any] | None = None,
    selector: Selector | None = None,
    **options: Any,
) -> Collection:
    """Runs episodes on an event loop of its own; see :func:`collect_async`.

    Raises:
        RuntimeError: If called from a running event loop: await :func:`collect_async` there.
    """
    return asyncio.run(collect_async(environments, episodes, policy, world_model, selector, **options))


async def collect_async(
    environments: Any,
    episodes: Sequence[Episode],
    policy: Policy | Callable[[History, int], Any],
    world_model: WorldModel | Callable[[History, Action], Any] | None = None,
    selector: Selector | None = None,
    *,
    visible: Sequence[str] = (),
    on_trajectory: Callable[[Trajectory], None] | None = None,
    on_turn: Callable[[TurnRecord], None] | None = None,
    **speculation: Any,
) -> Collection:
    """Runs episodes, each environment taking the next one as soon as it is free.

    Args:
        environments: A ``TerminalVectorEnv``, an environment, or a sequence of environments; they stay the caller's.
        episodes: What to run; ids must be distinct.
        policy: Chooses actions.
        world_model: Predicts observations; ``None`` for none.
        selector: How far ahead to speculate.
        visible: Names of the entries of ``info`` that the policy reads, in ``history.visible``; a world model has to
            predict them too.
        on_trajectory: Is called with each trajectory as it is finished.
        on_turn: Is called with each turn's record as it is decided.
        **speculation: Further arguments of :class:`~obsspec_gym.speculation.speculator.Speculator`.

    Returns:
        The trajectories and the record of every turn.

    Raises:
        InvalidArgumentError: Before anything is started: no environments, or two episodes with the same id.
    """
    if len({episode.id for episode in episodes}) != len(episodes):
        raise InvalidArgumentError("episodes must have distinct ids (task and sample), got two with the same")
    slots = as_slots(environments)
    observed, acted = spaces_of(environments)
    viewer = Viewer(observed, visible)
    turns: list[TurnRecord] = []

    def note(turn: TurnRecord) -> None:
        turns.append(turn)
        if on_turn is not None:
            on_turn(turn)

    speculator = Speculator(
        conforming_policy(policy, acted),
        conforming_world_model(world_model, observed),
        selector,
        on_turn=note,
        **speculation,
    )
    clock = asyncio.get_running_loop().time
    started = clock()
    queue = deque(enumerate(episodes))
    finished: dict[int, Trajectory] = {}

    async def work(slot: Slot) -> None:
        while queue:
            index, episode = queue.popleft()
            finished[index] = trajectory = await rollout(slot, episode, speculator, viewer)
            if on_trajectory is not None:
                on_trajectory(trajectory)

    try:
        async with asyncio.TaskGroup() as workers:
            for slot in slots[: len(episodes)]:
                workers.create_task(work(slot))
    except BaseExceptionGroup as group:
        # The workers share one fate; their first error says more than the group does.
        raise group.exceptions[0] from None
    finally:
        await speculator.close()
        for slot in slots:
            slot.close()
    return Collection(
        trajectories=tuple(finished[index] for index in range(len(episodes))),
        turns=tuple(turns),
        seconds=clock() - started,
        world_model_failures=speculator.world_model_failures,
        selector_failures=speculator.selector_failures,
    )


async def rollout(slot: Slot, episode: Episode, speculator: Speculator, viewer: Viewer) -> Trajectory:
    """Runs one episode to its end. What breaks on the way truncates it, with the reason."""
    run = _Run(slot, episode, speculator, viewer, asyncio.get_running_loop().time())
    try:
        await run.play()
    except Exception as error:  # noqa: BLE001 - boundary: a bad rollout is data, and its reason is kept
        run.truncated = True
        # Of what a policy raises, only a prompt that leaves no room is a bad argument: the episode grew too long.
        run.broken = run.stage != "policy" or not isinstance(error, InvalidArgumentError)
        run.reason = f"{run.stage}: {type(error).__name__}: {error}"
    finally:
        speculator.end(episode.id)
    return run.trajectory()


class _Run:
    """One episode under way."""

    def __init__(self, slot: Slot, episode: Episode, speculator: Speculator, viewer: Viewer, started: float) -> None:
        self.slot = slot
        self.episode = episode
        self.speculator = speculator
        self.viewer = viewer
        self.started = started
        self.finished = started
        self.steps: list[Step] = []
        self.history: History | None = None
        self.terminated = self.truncated = self.broken = False
        self.reason = ""
        self.stage = "reset"

    async def play(self) -> None:
        view = self.viewer.of(*await self.slot.reset(self.episode))
        self.stage = "policy"
        pending: NextAction | None = self.speculator.start(self.episode.id, view.observation, view.visible)
        while pending is not None:
            action = await pending
            tool = self.execute(pending, action)
            _, pending = await self.speculator.turn(pending.history, action, execute=tool)

    async def execute(self, pending: NextAction, action: Action) -> Outcome:
        """Steps the environment and writes the step down."""
        clock = asyncio.get_running_loop().time
        self.stage, began = "environment", clock()
        observation, reward, terminated, truncated, info = await self.slot.step(action)
        self.finished, self.stage = clock(), "policy"
        view = self.viewer.of(observation, info)
        completion: Completion = pending.completion()
        self.history = pending.history.act(action, completion.token_ids)
        self.steps.append(Step(action, completion, view.observation, reward, pending.hit, self.finished - began))
        self.terminated, self.truncated = terminated, truncated
        self.reason = str(info.get("reason", "turn limit")) if truncated else ""
        self.broken = truncated and bool(info.get("broken", False))
        return Outcome(view.observation, terminated or truncated, view.visible)

    def trajectory(self) -> Trajectory:
        return Trajectory(
            episode=self.episode.id,
            history=self.history,
            steps=tuple(self.steps),
            terminated=self.terminated,
            truncated=self.truncated,
            reason=self.reason,
            started=self.started,
            finished=self.finished,
            broken=self.broken,
        )
