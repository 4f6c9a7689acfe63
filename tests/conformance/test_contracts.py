"""The wrapper keeps Gymnasium's vector contracts over every kind of vector environment, and changes no trajectory."""

from __future__ import annotations

import threading
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from obsspec_gym import (
    Episode,
    EpisodeId,
    FixedSelector,
    InvalidArgumentError,
    MemoryWorldModel,
    ObsSpecVectorEnv,
    Off,
    TabularWorldModel,
    collect,
)
from obsspec_gym.speculation.record import TurnRecord
from tests.conformance.expected import Expected
from tests.conformance.worlds import (
    MODES,
    Counting,
    Gate,
    Twin,
    choose,
    counting,
    echo,
    offset_of,
    plain,
    say,
    step_through,
    terminals,
    vectors,
)

KINDS = list(vectors())
LENGTHS = (2, 3)
SEEDS = (5, 6)


def run(kind: str, mode: AutoresetMode, speculate: bool, turns: list[TurnRecord], **options: Any) -> list[Any]:
    """Eight steps with the mask visible, speculatively (two deep, two broad) or sequentially."""
    gate = Gate(choose, offset_of)
    world_model = Twin(wrong=3, visible=True) if speculate else None
    selector = FixedSelector(2, 2) if speculate else Off()
    # A gate cannot be sent to another process.
    wait: dict[str, Any] = {"pause": 0.05} if kind == "async" else {"gate": gate}
    envs = ObsSpecVectorEnv(
        counting(kind, mode, LENGTHS, **(wait if speculate else {})),
        gate.policy,
        world_model,
        selector,
        visible=("action_mask",),
        on_turn=turns.append,
        **options,
    )
    try:
        return step_through(envs, 8, seed=SEEDS[0], by_hand=mode is AutoresetMode.DISABLED)
    finally:
        envs.close()


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize("kind", KINDS)
def test_what_it_returns_is_what_the_contracts_say_and_the_same_with_and_without_speculation(
    kind: str, mode: AutoresetMode
) -> None:
    turns: list[TurnRecord] = []
    log = run(kind, mode, speculate=True, turns=turns)
    assert log == run(kind, mode, speculate=False, turns=[])
    predictions = [prediction.matched for turn in turns for prediction in turn.predictions]
    assert any(turn.hit for turn in turns)
    assert not all(predictions)

    expected = Expected(mode, LENGTHS)
    assert log[0] == plain(expected.reset(SEEDS))
    position = 1
    for _ in range(8):
        _, actions, *returned = log[position]
        numbers = np.frombuffer(actions[3], dtype=np.int64)
        assert actions[:3] == ["ndarray", "int64", (2,)]
        assert ["tuple", *returned] == plain(expected.step(numbers))
        position += 1
        if mode is AutoresetMode.DISABLED and any(expected.over):
            assert log[position] == plain(expected.reset([None, None], list(expected.over)))
            position += 1
    assert position == len(log)


@pytest.mark.filterwarnings("ignore:a local sandbox isolates nothing")
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_terminals_have_the_same_trajectories_with_and_without_speculation(mode: AutoresetMode) -> None:
    def play(speculate: bool) -> list[Any]:
        world_model, selector = (echo, FixedSelector(2, 1)) if speculate else (None, Off())
        envs = ObsSpecVectorEnv(terminals(mode), say, world_model, selector, on_turn=turns.append)
        try:
            observations, _ = envs.reset(seed=3)
            log: list[Any] = [observations]
            for _ in range(5):
                actions = envs.act()
                observations, rewards, terminated, truncated, _ = envs.step(actions)
                log.append((actions, observations, rewards.tolist(), terminated.tolist(), truncated.tolist()))
                over = terminated | truncated
                if mode is AutoresetMode.DISABLED and over.any():
                    log.append(envs.reset(options={"reset_mask": over})[0])
            return log
        finally:
            envs.close()

    turns: list[TurnRecord] = []
    assert play(True) == play(False)
    assert any(turn.hit for turn in turns)


@pytest.mark.parametrize("world_model", [MemoryWorldModel, TabularWorldModel])
def test_what_was_learnt_on_the_way_changes_no_trajectory(world_model: Any) -> None:
    def play(model: Any, turns: list[TurnRecord]) -> list[Any]:
        envs = ObsSpecVectorEnv(
            counting("sync", AutoresetMode.SAME_STEP, pause=0.01),
            choose,
            model,
            visible=("action_mask",),
            on_turn=turns.append,
        )
        try:
            return [step_through(envs, 12, seed=1) for _ in range(3)]
        finally:
            envs.close()

    turns: list[TurnRecord] = []
    assert play(world_model(), turns) == play(None, [])
    assert any(prediction.matched for turn in turns for prediction in turn.predictions)


def test_a_prediction_with_the_wrong_mask_is_a_miss() -> None:
    """I1: what the policy reads of info is part of what a prediction must get right."""

    def predictions(**twin: bool) -> list[bool]:
        turns: list[TurnRecord] = []
        gate = Gate(choose, offset_of)
        envs = ObsSpecVectorEnv(
            counting("sync", AutoresetMode.NEXT_STEP, (4, 4), gate=gate),
            gate.policy,
            Twin(length=4, wrong=10**9, **twin),
            FixedSelector(1, 1),
            visible=("action_mask",),
            on_turn=turns.append,
        )
        try:
            logs.append(step_through(envs, 8))
        finally:
            envs.close()
        return [turn.hit for turn in turns if turn.turn > 0]

    logs: list[Any] = []
    assert all(predictions(visible=True))
    assert not any(predictions(visible=True, wrong_mask=True))
    assert not any(predictions()), "one that says nothing of the mask is none of the policy's conditions either"
    assert logs[0] == logs[1] == logs[2]


def test_collecting_reads_the_same_of_info_and_brings_the_same() -> None:
    def play(speculate: bool) -> list[Any]:
        gate = Gate(choose, offset_of)
        collection = collect(
            [Counting(4, gate=gate if speculate else None) for _ in range(2)],
            [Episode(EpisodeId("count", sample), seed=sample) for sample in range(4)],
            gate.policy,
            Twin(length=4, wrong=3, visible=True) if speculate else None,
            FixedSelector(2, 1) if speculate else Off(),
            visible=("action_mask",),
        )
        hits.append(sum(turn.hit for turn in collection.turns))
        return [
            plain([(step.action, step.observation, step.reward) for step in trajectory.steps])
            for trajectory in collection.trajectories
        ]

    hits: list[int] = []
    trajectories = play(True)
    assert trajectories == play(False)
    assert hits[0] > 0 == hits[1]
    assert all(reward == 1 for trajectory in trajectories for *_, reward in trajectory[1:]), "the mask was seen"


def test_what_is_not_named_is_not_seen() -> None:
    seen = []

    def look(history: Any, seed: int) -> int:
        seen.append(history.visible)
        return 0

    for visible in [(), ("offset",), ("offset", "missing")]:
        envs = ObsSpecVectorEnv(counting("sync", AutoresetMode.NEXT_STEP), look, visible=visible)
        envs.reset(seed=0)
        envs.act()
        envs.close()
    assert seen[0] is seen[1] is None
    assert [list(each) for each in seen[2:]] == [["offset"]] * 2 + [["offset", "missing"]] * 2
    assert seen[4]["missing"] is None


@pytest.mark.parametrize("kind", ["sync", "thread"])
def test_spaces_and_batches_are_those_of_the_wrapped_environment(kind: str) -> None:
    bare = counting(kind, AutoresetMode.NEXT_STEP)
    envs = ObsSpecVectorEnv(bare, choose)
    try:
        assert envs.num_envs == 2
        assert envs.single_observation_space == Counting.observation_space
        assert envs.single_action_space == Counting.action_space
        assert envs.observation_space == bare.observation_space
        assert envs.action_space == bare.action_space
        assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
        envs.reset(seed=0)
        actions = envs.act()
        assert actions in envs.action_space
        assert envs.step(actions)[1].dtype == np.float64
    finally:
        envs.close()


@pytest.mark.parametrize("kind", ["sync", "thread"])
@pytest.mark.parametrize(
    "mask", [np.array([True]), np.array([[True, True]]), np.array([1, 0]), np.array([False, False]), [1.0, 0.0], "yes"]
)
def test_a_bad_reset_mask_is_refused_as_the_bare_environment_refuses_it(kind: str, mask: Any) -> None:
    bare = counting(kind, AutoresetMode.DISABLED)
    envs = ObsSpecVectorEnv(counting(kind, AutoresetMode.DISABLED), choose)
    try:
        bare.reset(seed=0)
        envs.reset(seed=0)
        before = envs.act()
        with pytest.raises(Exception, match=r".") as expected:
            bare.reset(options={"reset_mask": mask})
        with pytest.raises(type(expected.value)) as found:
            envs.reset(options={"reset_mask": mask})
        assert str(found.value) == str(expected.value)
        if np.asarray(mask).dtype != np.bool_ or np.asarray(mask).shape != (2,):
            assert envs.act().tolist() == before.tolist(), "nothing was reset, so nothing was released"
    finally:
        envs.close()
        bare.close()


@pytest.mark.parametrize("kind", ["sync", "thread"])
def test_a_mask_resets_those_it_names_and_keeps_the_dictionary(kind: str) -> None:
    envs = ObsSpecVectorEnv(counting(kind, AutoresetMode.DISABLED, (5, 5)), choose, Twin(length=5))
    try:
        first, _ = envs.reset(seed=[7, 8])
        stepped, *_ = envs.step(envs.act())
        options = {"reset_mask": np.array([True, False])}
        again, infos = envs.reset(seed=[7, None], options=options)
        assert list(options) == ["reset_mask"]
        assert infos["_offset"].tolist() == [True, False]
        assert again["place"][0].tolist() == first["place"][0].tolist()
        assert again["place"][1].tolist() == stepped["place"][1].tolist()
        assert envs.step(envs.act())[0]["count"].tolist() == [1, 2]
    finally:
        envs.close()


@pytest.mark.parametrize("kind", ["sync", "thread"])
@pytest.mark.parametrize(
    ("actions", "kind_of_error"),
    [([1], ValueError), ([1, 2, 0], ValueError), ([[]], ValueError), (1, TypeError), ("ab", TypeError)],
)
def test_actions_that_are_not_one_for_each_are_refused_before_any_is_sent(
    kind: str, actions: Any, kind_of_error: type[Exception]
) -> None:
    envs = ObsSpecVectorEnv(counting(kind, AutoresetMode.NEXT_STEP), choose, Twin())
    try:
        envs.reset(seed=0)
        before = envs.act()
        with pytest.raises(InvalidArgumentError) as found:
            envs.step(actions)
        assert isinstance(found.value, kind_of_error)
        observations, *_ = envs.step(before)
        assert observations["count"].tolist() == [1, 1]
    finally:
        envs.close()


@pytest.mark.parametrize("kind", KINDS)
def test_closing_twice_is_closing_once_and_leaves_no_thread(kind: str) -> None:
    before = set(threading.enumerate())
    envs = ObsSpecVectorEnv(counting(kind, AutoresetMode.NEXT_STEP), choose, Twin())
    envs.reset(seed=0)
    actions = envs.act()
    assert envs.call("get_wrapper_attr", "length") == envs.get_attr("length") == LENGTHS
    envs.set_attr("mark", [1, 2])
    assert envs.get_attr("mark") == (1, 2)
    envs.close()
    envs.close()
    assert envs.closed
    for use in (envs.reset, lambda: envs.step(actions), envs.act):
        with pytest.raises(gym.error.ClosedEnvironmentError):
            use()
    left = [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("obsspec")]
    for thread in left:
        thread.join(5)
    assert not any(thread.is_alive() for thread in left)


def test_equal_seeds_are_several_tries_at_the_same() -> None:
    """A group: the same start, each try with noise of its own, and the same group again with the same seeds."""

    def play() -> list[Any]:
        envs = ObsSpecVectorEnv(counting("sync", AutoresetMode.SAME_STEP, (9,) * 6), choose, Twin(length=9))
        try:
            observations, _ = envs.reset(seed=[7] * 6)
            starts.append(observations["place"].tolist())
            actions = [envs.act().tolist()]
            for _ in range(4):
                envs.step(envs.act())
                actions.append(envs.act().tolist())
            return actions
        finally:
            envs.close()

    starts: list[Any] = []
    actions = play()
    assert actions == play()
    assert all(start == starts[0][0] for start in starts[0])
    assert len({tuple(tries) for tries in zip(*actions, strict=True)}) > 2


class Failing(Counting):
    """Raises in its second step."""

    def step(self, action: Any) -> Any:
        if self._count == 1:
            raise OSError("broken")
        return super().step(action)


def test_a_step_that_raises_asks_for_a_reset_and_leaves_nothing_running() -> None:
    envs = ObsSpecVectorEnv(vectors()["sync"]([Counting, Failing]), choose, Twin())
    try:
        envs.reset(seed=0)
        envs.step(envs.act())
        actions = envs.act()
        with pytest.raises(OSError, match="broken"):
            envs.step(actions)
        for use in (envs.act, lambda: envs.step(actions)):
            with pytest.raises(gym.error.ResetNeeded):
                use()
        envs.reset(seed=0)
        assert envs.step(envs.act())[0]["count"].tolist() == [1, 1]
    finally:
        envs.close()
