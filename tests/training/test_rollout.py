"""Rows from episodes; no TRL, no model."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import gymnasium as gym
import pytest

from obsspec_gym.agents.fakes import ScriptedPolicy
from obsspec_gym.agents.history import History
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.speculation.trajectory import Step, Trajectory
from obsspec_gym.training.rollout import Rollouts, Row, name_episodes
from obsspec_gym.types import Completion, EpisodeId
from tests.training.parts import DigitSuite

PAD = 99


def trajectory(turns: int = 2, **how: Any) -> Trajectory:
    """Prompt (1, 2); completions (10, 11), (20, 21), ...; observations (5,)."""
    name = EpisodeId("t")
    history, steps = History.start(name, "task", (1, 2)), []
    for turn in range(1, turns + 1):
        tokens = (10 * turn, 10 * turn + 1)
        if turn > 1:
            history = history.observe("seen", (5,))
        history = history.act("go", tokens)
        steps.append(Step("go", Completion(tokens, (-0.5, -turn)), "seen", 1.0, False, 0.0))
    options = {"terminated": True, "truncated": False, "reason": "", "started": 0.0, "finished": 1.0} | how
    return Trajectory(name, history if turns else None, tuple(steps), **options)


def test_a_row_has_the_tokens_of_all_turns() -> None:
    row = Row.of(trajectory(), PAD)
    assert row.prompt_ids == (1, 2)
    assert row.completion_ids == (10, 11, 5, 20, 21)
    assert row.env_mask == (1, 1, 0, 1, 1)
    assert row.logprobs == (-0.5, -1, 0.0, -0.5, -2)
    assert row.scored


def test_an_episode_that_broke_is_not_scored() -> None:
    row = Row.of(trajectory(terminated=False, truncated=True, broken=True), PAD)
    assert row.env_mask == (0, 0, 0, 0, 0)
    assert not row.scored


def test_an_episode_without_tokens_is_a_masked_placeholder() -> None:
    for broken in (False, True):  # a prompt that fills the context; no reset
        row = Row.of(trajectory(turns=0, terminated=False, truncated=True, broken=broken), PAD)
        assert (row.prompt_ids, row.completion_ids, row.env_mask, row.logprobs) == ((PAD,), (PAD,), (0,), (0.0,))
        assert not row.scored


def test_a_truncated_episode_is_scored_and_can_be_masked() -> None:
    cut = trajectory(terminated=False, truncated=True, reason="turn limit")
    assert Row.of(cut, PAD).env_mask == (1, 1, 0, 1, 1)
    masked = Row.of(cut, PAD, mask_truncated=True)
    assert masked.scored
    assert masked.env_mask == (0, 0, 0, 0, 0)


def test_names_depend_on_the_place_in_the_whole_batch() -> None:
    suite = DigitSuite()
    tasks = [3, 3, 4, 4, 3, 3]
    alone = name_episodes(tasks, suite)
    assert [(episode.id.task_id, episode.id.sample) for episode in alone] == [
        ("digits/3", 0), ("digits/3", 1), ("digits/4", 0), ("digits/4", 1), ("digits/3", 2), ("digits/3", 3)
    ]  # fmt: skip
    before = [episode.id.task_id for episode in alone[:3]]
    ranks = name_episodes(tasks[:3], suite) + name_episodes(tasks[3:], suite, before)
    assert ranks == alone
    assert alone[0].options == {"task": suite.task(3), "sample": 0}


def test_without_a_suite_the_task_is_the_environments_business() -> None:
    [episode] = name_episodes(["anything"], None)
    assert (episode.id, episode.options) == (EpisodeId("anything"), {"task": "anything", "sample": 0})


class Echo(gym.Env[str, str]):
    """Ends after two steps with reward 1; ``interrupt`` raises what no rollout survives."""

    observation_space = gym.spaces.Text(100)
    action_space = gym.spaces.Text(100)
    opened = 0

    def __init__(self) -> None:
        Echo.opened += 1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self.turn = 0
        return "begin", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if action == "interrupt":
            raise KeyboardInterrupt
        self.turn += 1
        return action, 0.5, self.turn == 2, False, {}

    def close(self) -> None:
        Echo.opened -= 1


@pytest.fixture(autouse=True)
def all_closed() -> Any:
    Echo.opened = 0
    yield
    assert Echo.opened == 0


def two() -> list[Echo]:
    return [Echo(), Echo()]


def play(rollouts: Rollouts) -> Any:
    return rollouts.play(name_episodes([7, 7, 8], DigitSuite()), run_seed=0, policy_step=0)


def test_rows_come_in_the_order_of_the_episodes() -> None:
    slow_first = ScriptedPolicy(["a", "b"], seconds=lambda history, _: 0.02 / (1 + history.episode.sample), tokens=True)
    rollouts = Rollouts(slow_first, two, pad_token_id=PAD)
    batch = play(rollouts)
    assert [(row.trajectory.episode.task_id, row.trajectory.episode.sample) for row in batch.rows] == [
        ("digits/7", 0), ("digits/7", 1), ("digits/8", 0)
    ]  # fmt: skip
    assert {row.trajectory.reward for row in batch.rows} == {1.0}
    measures = batch.measures()
    assert measures["turns"] == 6
    assert (measures["solved"], measures["truncated"], measures["unscored"]) == (1.0, 0.0, 0.0)
    assert "match_rate" not in measures  # nothing was predicted
    rollouts.close()


def test_environments_are_made_once_and_closed_with_it() -> None:
    rollouts = Rollouts(ScriptedPolicy(["a"], tokens=True), two, pad_token_id=PAD)
    assert Echo.opened == 0
    play(rollouts)
    play(rollouts)
    assert Echo.opened == 2
    rollouts.close()
    rollouts.close()
    assert Echo.opened == 0
    play(rollouts)
    assert Echo.opened == 2
    del rollouts  # forgotten: the finaliser closes them


def test_environments_of_the_caller_stay_the_callers() -> None:
    envs = two()
    rollouts = Rollouts(ScriptedPolicy(["a"], tokens=True), envs, pad_token_id=PAD)
    play(rollouts)
    rollouts.close()
    assert Echo.opened == 2
    for env in envs:
        env.close()


def test_after_an_interrupt_nothing_is_left() -> None:
    rollouts = Rollouts(ScriptedPolicy(["a", "interrupt"], tokens=True), two, pad_token_id=PAD)
    with pytest.raises(KeyboardInterrupt):
        play(rollouts)
    assert Echo.opened == 0


def test_a_policy_that_fails_is_not_the_episodes_fault(caplog: pytest.LogCaptureFixture) -> None:
    def fail(history: History, seed: int) -> str:
        if history.episode.sample == 1:
            raise OSError("the engine died")
        if history.episode.task_id == "digits/8" and history.turn == 1:
            raise InvalidArgumentError("no room")
        return "a"

    rollouts = Rollouts(ScriptedPolicy(fail, tokens=True), two, pad_token_id=PAD)
    rows = play(rollouts).rows
    assert [(row.scored, row.trajectory.broken, row.trajectory.truncated) for row in rows] == [
        (True, False, False), (False, True, True), (True, False, True)
    ]  # fmt: skip
    assert "1 of 3 episodes cannot be scored, they are left out" in caplog.text
    assert "the engine died" in caplog.text
    rollouts.close()


def test_it_plays_where_an_event_loop_is_running() -> None:
    rollouts = Rollouts(ScriptedPolicy(["a"], tokens=True), two, pad_token_id=PAD)

    async def cell() -> int:
        return len(play(rollouts).rows)

    assert asyncio.run(cell()) == 3
    rollouts.close()


def test_rollouts_need_neither_torch_nor_trl() -> None:
    code = "import sys, obsspec_gym.training.rollout; assert not {'torch', 'trl'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)
