"""Real terminals: the vector wrapper and free-running collection over sandboxes, with and without speculation."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest

from obsspec_gym.agents.history import History
from obsspec_gym.agents.world_model.memory import MemoryWorldModel
from obsspec_gym.envs.tasks import get_suite
from obsspec_gym.envs.vector import TerminalVectorEnv
from obsspec_gym.speculation.collector import Collection, collect
from obsspec_gym.speculation.comparison import Cause, compare
from obsspec_gym.speculation.record import TurnRecord
from obsspec_gym.speculation.selector import FixedSelector, Off
from obsspec_gym.speculation.slot import Episode
from obsspec_gym.speculation.wrapper import ObsSpecVectorEnv
from obsspec_gym.types import EpisodeId

SUITE = get_suite("basics")
TASKS = {SUITE.task(index).id: SUITE.task(index) for index in range(400, 404)}


def expert(history: History, seed: int) -> str:
    """The suite's scripted expert, replayed up to this history."""
    script = SUITE.expert(TASKS[history.episode.task_id])
    action = next(script)
    for turn in history.turns:
        action = script.send(turn.observation)
    return action


def play(envs: ObsSpecVectorEnv) -> tuple[list[Any], float]:
    """One episode an environment; everything that was seen and done, and the sum of rewards."""
    log: list[Any] = []
    rewarded = 0.0
    task_options: dict[str, Any] = {"task": next(iter(TASKS.values()))}
    observations, _ = envs.reset(seed=5, options=task_options)
    log.append(list(observations))
    over = [False] * envs.num_envs
    while not all(over):
        actions = envs.act()
        observations, rewards, terminated, truncated, _ = envs.step(actions)
        log.append((list(actions), list(observations), list(rewards), list(terminated)))
        rewarded += float(rewards.sum())
        over = [before or bool(t or c) for before, t, c in zip(over, terminated, truncated, strict=True)]
    return log, rewarded


def test_the_vector_wrapper_solves_real_tasks_the_same_with_and_without() -> None:
    logs = []
    turns: list[TurnRecord] = []
    for model, selector in ((None, Off()), (MemoryWorldModel(), FixedSelector(1, 1))):
        envs = ObsSpecVectorEnv(
            gym.make_vec("obsspec_gym/Terminal-v0", num_envs=2, suite="basics"),  # type: ignore[arg-type]
            expert,
            model,
            selector,
            on_turn=turns.append,
        )
        try:
            # Twice: the second time the memory knows what comes.
            first, second = play(envs), play(envs)
        finally:
            envs.close()
        assert first[1] == second[1] == 2.0
        logs.append((first[0], second[0]))
    assert logs[0] == logs[1]
    assert any(turn.hit for turn in turns)


@pytest.fixture(scope="module")
def sequential() -> Collection:
    return free_running(None, Off())


def free_running(model: MemoryWorldModel | None, selector: FixedSelector) -> Collection:
    envs = TerminalVectorEnv(3, suite=SUITE)
    episodes = [
        Episode(EpisodeId(task.id, sample), options={"task": task, "sample": sample})
        for task in TASKS.values()
        for sample in range(2)
    ]
    try:
        return collect(envs, episodes, expert, model, selector)
    finally:
        envs.close()


def test_free_running_collection_is_the_same_and_the_memory_hits(sequential: Collection) -> None:
    speculative = free_running(MemoryWorldModel(), FixedSelector(2, 2))
    comparison = compare(sequential.trajectories, speculative.trajectories)
    assert comparison.actions_identical, comparison.summary()
    assert comparison.identical, comparison.summary()
    assert all(trajectory.reward == 1.0 for trajectory in speculative.trajectories)
    assert any(turn.hit for turn in speculative.turns)
    assert not any(turn.hit for turn in sequential.turns)


def test_i2b_where_the_world_differs_the_first_difference_is_an_observation_and_its_cause_is_named() -> None:
    """A clock is read: no two runs see the same, and what the policy does next may depend on it."""
    task = next(iter(TASKS.values()))

    def curious(history: History, seed: int) -> str:
        return ("date +%s%N", f"echo {history.value}", "submit")[min(history.turn, 2)]

    def run(model: MemoryWorldModel | None, selector: FixedSelector) -> Collection:
        envs = TerminalVectorEnv(1, suite=SUITE)
        try:
            episodes = [Episode(EpisodeId(task.id, 0), options={"task": task})]
            return collect(envs, episodes, curious, model, selector)
        finally:
            envs.close()

    comparison = compare(run(None, Off()).trajectories, run(MemoryWorldModel(), FixedSelector(1, 1)).trajectories)
    assert not comparison.identical
    assert comparison.actions_identical
    assert comparison.causes == {Cause.OBSERVATION_TIME.value: 1}
    assert comparison.differences[0].turn == 0
