"""The comparison names the first difference and its cause; a fault planted in a run is found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from obsspec_gym.speculation.comparison import Cause, compare
from obsspec_gym.speculation.selector import Off
from obsspec_gym.speculation.trajectory import Trajectory

from .scenario import World


@pytest.fixture(scope="module")
def trajectories() -> tuple[Trajectory, ...]:
    return World(seed=11, turns=5).run(None, Off()).trajectories


def altered(trajectories: tuple[Trajectory, ...], turn: int, **changes: object) -> list[Trajectory]:
    """The second trajectory with one step changed."""
    victim = trajectories[1]
    steps = list(victim.steps)
    steps[turn] = replace(steps[turn], **changes)  # type: ignore[arg-type]
    return [trajectories[0], replace(victim, steps=tuple(steps)), *trajectories[2:]]


def test_a_run_is_identical_to_itself_in_any_order(trajectories: tuple[Trajectory, ...]) -> None:
    comparison = compare(trajectories, trajectories[::-1])
    assert comparison.identical
    assert comparison.turns == sum(len(t.steps) for t in trajectories)
    assert comparison.tokens == sum(len(s.completion.token_ids) for t in trajectories for s in t.steps)
    assert "identical" in comparison.summary()


def test_causes(trajectories: tuple[Trajectory, ...]) -> None:
    step = trajectories[1].steps[0]
    other_tokens = replace(step.completion, token_ids=(1, 2, 3))
    cases = [
        ({"action": (9, 9)}, Cause.ACTION),
        ({"completion": other_tokens}, Cause.TOKENS),
        ({"observation": step.observation.replace("answer", "reply")}, Cause.OBSERVATION),
        ({"observation": "answer 777"}, Cause.OBSERVATION_TIME),
    ]
    for changes, cause in cases:
        comparison = compare(trajectories, altered(trajectories, 0, **changes))
        [difference] = comparison.differences
        assert difference.cause is cause
        assert difference.turn == 0
        assert difference.task_id == trajectories[1].episode.task_id
        assert comparison.actions_identical == (cause in (Cause.OBSERVATION, Cause.OBSERVATION_TIME))
        assert cause.value in comparison.summary()


def test_missing_and_shorter_episodes_are_differences(trajectories: tuple[Trajectory, ...]) -> None:
    assert compare(trajectories, trajectories[1:]).differences[0].cause is Cause.MISSING
    assert compare(trajectories[1:], trajectories).differences[0].cause is Cause.MISSING
    cut = replace(trajectories[0], steps=trajectories[0].steps[:-1])
    assert compare([cut, *trajectories[1:]], trajectories).differences[0].cause is Cause.ENDING
