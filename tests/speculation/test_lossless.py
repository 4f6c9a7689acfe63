"""Sequential == speculative: the invariants I1-I7 on the virtual clock, over drawn schedules."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from obsspec_gym.agents.engine.simulated import SimulatedEngine, constant_step
from obsspec_gym.agents.fakes import ScriptedWorldModel
from obsspec_gym.agents.history import History
from obsspec_gym.agents.token_policy import TokenPolicy
from obsspec_gym.speculation.adaptive import AdaptiveSelector
from obsspec_gym.speculation.clock import run_virtual
from obsspec_gym.speculation.collector import Collection
from obsspec_gym.speculation.comparison import compare
from obsspec_gym.speculation.predictor import Patience
from obsspec_gym.speculation.record import Fate, TurnRecord
from obsspec_gym.speculation.selector import FixedSelector, Off, Selector
from obsspec_gym.speculation.speculator import Speculator
from obsspec_gym.types import EpisodeId, Outcome, Prediction, Sampling

from .scenario import World, moody_world_model

worlds = st.builds(
    World,
    seed=st.integers(0, 2**31),
    episodes=st.integers(1, 5),
    environments=st.integers(1, 3),
    turns=st.integers(1, 7),
    tool_scale=st.sampled_from([0.0, 0.02, 0.1, 0.5]),
    answers=st.integers(1, 4),
    step_seconds=st.sampled_from([0.001, 0.01, 0.05]),
    max_running=st.sampled_from([1, 3, 64]),
)


@settings(max_examples=300, deadline=None)
@given(
    world=worlds,
    depth=st.integers(1, 4),
    breadth=st.integers(1, 4),
    seconds=st.sampled_from([0.0, 0.01, 0.2]),
    right=st.sampled_from([0.0, 0.5, 1.0]),
    max_futures=st.sampled_from([1, 4, 64]),
    make_selector=st.sampled_from([FixedSelector, AdaptiveSelector]),
)
def test_trajectories_are_those_of_the_sequential_run(
    world: World,
    depth: int,
    breadth: int,
    seconds: float,
    right: float,
    max_futures: int,
    make_selector: Callable[[int, int], Selector],
) -> None:
    sequential = world.run(None, Off())
    executed = world.executed
    model = moody_world_model(world, seconds, right)
    speculative = world.run(model, make_selector(depth, breadth), max_futures=max_futures)
    comparison = compare(sequential.trajectories, speculative.trajectories)
    assert comparison.identical, comparison.summary()  # I2a
    assert world.executed == executed  # I3
    load = world.engine.load()
    assert (load.running, load.waiting) == (0, 0)  # I5
    check_records(speculative)


def check_records(collection: Collection) -> None:
    """What must be true of any run's records."""
    ended: set[EpisodeId] = set()
    for turn in collection.turns:
        assert turn.episode not in ended
        if turn.ends:
            ended.add(turn.episode)
        assert turn.hidden_seconds <= turn.hidable_seconds + 1e-9
        assert all(p.span.end <= turn.tool.end for p in turn.predictions)
        assert all(future.fate is not Fate.KEPT for future in turn.futures)
        assert sum(p.matched for p in turn.predictions) <= 1


def test_a_right_world_model_hides_exactly_what_it_can() -> None:
    """Tool 1.0 s, generation 0.4 s, prediction 0.1 s: every turn but the first loses its generation time."""
    engine = SimulatedEngine(constant_step(0.1), length=lambda prompt, seed: 4)

    async def main(model: Any, selector: Any) -> float:
        speculator = Speculator(TokenPolicy(engine, Sampling()), model, selector)
        loop = asyncio.get_running_loop()
        action = speculator.start(EpisodeId("t"), "go")
        history_turns = 0
        while action is not None:
            chosen = await action
            history_turns += 1
            ends = history_turns == 5
            _, action = await speculator.turn(action.history, chosen, execute=_after(1.0, Outcome("ok", ends)))
        await speculator.close()
        return loop.time()

    def oracle(history: History, action: object) -> Outcome:
        return Outcome("ok", ends=history.turn + 1 == 5)

    sequential = run_virtual(main(None, None))
    speculative = run_virtual(main(ScriptedWorldModel.right(oracle, seconds=0.1), FixedSelector(1, 1)))
    assert sequential == pytest.approx(5 * 1.4)
    assert speculative == pytest.approx(5 * 1.0 + 0.4)


def test_depth_hides_more_than_one_generation_under_a_long_tool() -> None:
    """A 10 s tool, then instant ones: depth 3 has three actions ready when it ends."""
    engine = SimulatedEngine(constant_step(0.1), length=lambda prompt, seed: 5)

    async def main(depth: int) -> float:
        model = ScriptedWorldModel.right(lambda history, action: Outcome("ok", ends=history.turn == 3))
        speculator = Speculator(TokenPolicy(engine, Sampling()), model, FixedSelector(depth, 1))
        action, turn = speculator.start(EpisodeId("t"), "go"), 0
        while action is not None:
            chosen = await action
            tool = _after(10.0 if turn == 0 else 0.0, Outcome("ok", ends=turn == 3))
            _, action = await speculator.turn(action.history, chosen, execute=tool)
            turn += 1
        await speculator.close()
        return asyncio.get_running_loop().time()

    assert run_virtual(main(1)) == pytest.approx(10.5 + 2 * 0.5)
    assert run_virtual(main(3)) == pytest.approx(10.5)


def test_i1_the_end_is_part_of_the_prediction() -> None:
    async def main(predicted_end: bool, real_end: bool) -> tuple[bool, int]:
        engine = SimulatedEngine()
        records: list[TurnRecord] = []
        model = ScriptedWorldModel.right(lambda history, action: Outcome("same", ends=predicted_end))
        speculator = Speculator(TokenPolicy(engine, Sampling()), model, on_turn=records.append)
        action = speculator.start(EpisodeId("t"), "go")
        chosen = await action
        _, following = await speculator.turn(action.history, chosen, execute=_after(1.0, Outcome("same", real_end)))
        hit = following is not None and following.hit
        await speculator.close()
        return hit, sum(prediction.matched for prediction in records[0].predictions)

    assert run_virtual(main(False, False)) == (True, 1)
    assert run_virtual(main(True, False)) == (False, 0)
    assert run_virtual(main(False, True)) == (False, 0)
    assert run_virtual(main(True, True)) == (False, 1)


def test_i1_a_policy_that_sees_more_than_the_observation_is_keyed_by_it() -> None:
    async def main(predicted: int) -> bool:
        engine = SimulatedEngine()

        async def predict(history: History, action: object, n: int, partial: str) -> list[Prediction]:
            return [Prediction("same", visible={"mask": [predicted, 1]})]

        speculator = Speculator(TokenPolicy(engine, Sampling()), ScriptedWorldModel(predict))
        action = speculator.start(EpisodeId("t"), "go")
        chosen = await action
        real = Outcome("same", visible={"mask": [1, 1]})
        _, following = await speculator.turn(action.history, chosen, execute=_after(1.0, real))
        assert following is not None
        await speculator.close()
        return following.hit

    assert run_virtual(main(1))
    assert not run_virtual(main(0))


def test_predictions_are_told_apart_as_exactly_as_they_are_verified() -> None:
    async def main() -> list[bool]:
        records: list[TurnRecord] = []

        async def predict(history: History, action: object, n: int, partial: str) -> list[Prediction]:
            return [Prediction(0.0), Prediction(-0.0)]

        model = ScriptedWorldModel(predict)
        speculator = Speculator(lambda history, seed: 1, model, FixedSelector(1, 2), on_turn=records.append)
        action = speculator.start(EpisodeId("t"), 1.0)
        await speculator.turn(action.history, await action, execute=_after(1.0, Outcome(-0.0)))
        await speculator.close()
        return [prediction.matched for prediction in records[0].predictions]

    assert run_virtual(main()) == [False, True]


class _Stubborn:
    """A world model that does not react to cancellation."""

    async def predict(self, history: History, action: object, n: int, partial: str = "") -> list[Prediction]:
        for _ in range(20):
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                continue
        return []

    def observe(self, transition: object) -> None:
        raise OSError("no memory left")

    def close(self) -> None: ...


@pytest.mark.parametrize("depth", [1, 3])
def test_i4_a_world_model_that_ignores_cancellation_costs_no_time(depth: int) -> None:
    world = World(seed=3, tool_scale=0.3, turns=5)
    sequential = world.run(None, Off())
    speculative = world.run(_Stubborn(), FixedSelector(depth, 2))
    assert compare(sequential.trajectories, speculative.trajectories).identical
    assert speculative.seconds == pytest.approx(sequential.seconds)
    assert any("no memory left" in reason for reason in speculative.world_model_failures)


def test_i4_after_several_failures_the_world_model_is_left_alone_and_tried_again() -> None:
    world = World(seed=5, tool_scale=4.0, turns=7, episodes=6, environments=1)

    async def broken(history: History, action: object, n: int, partial: str) -> list[Prediction]:
        raise RuntimeError("weights missing")

    model = ScriptedWorldModel(broken)
    impatient = world.run(model, FixedSelector(1, 1), patience=Patience(failures=2, pause=1e9))
    assert len(model.calls) == 2
    assert impatient.world_model_failures == {"RuntimeError: weights missing": 2}
    model.calls.clear()
    world.run(model, FixedSelector(1, 1), patience=Patience(failures=2, pause=3.0))
    assert len(model.calls) > 2


def test_i5_at_every_commit_only_what_can_come_true_is_left_in_the_engine() -> None:
    world = World(seed=7, turns=7, tool_scale=0.5, answers=2, environments=1, episodes=5)
    discarded: list[int] = []

    def check(record: TurnRecord) -> None:
        load = world.engine.load()
        discarded.append(len(record.futures))
        assert load.speculative <= 3  # the kept future, still running, or its two children
        if record.ends:
            assert load.running + load.waiting == 0

    async def predict(history: History, action: Any, n: int, partial: str) -> list[Prediction]:
        return [Prediction(f"answer {i}") for i in range(2)]

    world.run(ScriptedWorldModel(predict), FixedSelector(2, 2), on_turn=check)
    assert max(discarded) >= 3


def test_i6_unfinished_generations_are_kept_like_finished_ones() -> None:
    """Keeping only the finished ones would prefer short actions: here the long one is kept and continued."""

    async def main(length: int) -> tuple[bool, bool, float]:
        engine = SimulatedEngine(constant_step(0.1), length=lambda prompt, seed: length)
        model = ScriptedWorldModel.right(lambda history, action: Outcome("ok"))
        speculator = Speculator(TokenPolicy(engine, Sampling()), model)
        action = speculator.start(EpisodeId("t"), "go")
        chosen = await action
        _, following = await speculator.turn(action.history, chosen, execute=_after(1.0, Outcome("ok")))
        assert following is not None
        done = following.done()
        committed = asyncio.get_running_loop().time()
        await following
        waited = asyncio.get_running_loop().time() - committed
        await speculator.close()
        return following.hit, done, waited

    assert run_virtual(main(2)) == (True, True, 0.0)
    hit, done, waited = run_virtual(main(30))
    assert (hit, done) == (True, False)
    assert waited == pytest.approx(2.0)


def test_i7_an_update_drops_every_uncommitted_future_finished_or_not() -> None:
    async def main(update: bool) -> tuple[bool, int]:
        engine = SimulatedEngine(constant_step(0.01))
        model = ScriptedWorldModel.right(lambda history, action: Outcome("ok"))
        speculator = Speculator(TokenPolicy(engine, Sampling()), model, FixedSelector(1, 1))
        action = speculator.start(EpisodeId("t"), "go")
        chosen = await action
        turn = asyncio.ensure_future(speculator.turn(action.history, chosen, execute=_after(1.0, Outcome("ok"))))
        await asyncio.sleep(0.9)
        futures = speculator.futures(EpisodeId("t"))
        assert futures is not None
        assert len(futures) == 1
        if update:
            speculator.update_weights(policy_step=1)
            assert len(futures) == 0
        _, following = await turn
        assert following is not None
        await following
        load = engine.load()
        await speculator.close()
        return following.hit, load.running + load.waiting

    assert run_virtual(main(False)) == (True, 0)
    assert run_virtual(main(True)) == (False, 0)


def test_an_action_from_elsewhere_is_legal_and_releases_what_nobody_takes() -> None:
    async def main() -> None:
        engine = SimulatedEngine(constant_step(0.1), length=lambda prompt, seed: 50)
        records: list[TurnRecord] = []
        speculator = Speculator(TokenPolicy(engine, Sampling()), None, on_turn=records.append)
        action = speculator.start(EpisodeId("t"), "go")
        observation, following = await speculator.turn(action.history, (7, 8), execute=_after(1.0, "ok"))
        assert observation == "ok"
        assert following is not None
        assert following.history.last_action == (7, 8)
        assert following.history.turn == 1
        assert engine.counters.cancelled == 1
        assert records[0].generation is None
        await speculator.close()
        assert engine.load().running == 0

    run_virtual(main())


def test_what_the_tool_raises_reaches_the_caller_and_leaves_nothing() -> None:
    async def main() -> None:
        engine = SimulatedEngine(constant_step(0.1))
        model = ScriptedWorldModel.right(lambda history, action: Outcome("ok"))
        speculator = Speculator(TokenPolicy(engine, Sampling()), model)
        action = speculator.start(EpisodeId("t"), "go")

        async def broken() -> str:
            await asyncio.sleep(0.5)
            raise ConnectionError("the sandbox is gone")

        chosen = await action
        with pytest.raises(ConnectionError, match="sandbox is gone"):
            await speculator.turn(action.history, chosen, execute=broken())
        assert (engine.load().running, engine.load().waiting) == (0, 0)
        assert speculator.futures(EpisodeId("t")) is None
        await speculator.close()

    run_virtual(main())


def test_an_engine_that_fails_speculative_requests_changes_nothing() -> None:
    """A failed future is a miss: the real generation is submitted anew."""

    async def main() -> bool:
        failed: list[int] = []

        def fails(prompt: Any, seed: int) -> bool:
            failed.append(seed)
            return len(failed) == 2  # the speculative one

        engine = SimulatedEngine(constant_step(0.1), fails=fails)
        model = ScriptedWorldModel.right(lambda history, action: Outcome("ok"))
        speculator = Speculator(TokenPolicy(engine, Sampling()), model)
        action = speculator.start(EpisodeId("t"), "go")
        chosen = await action
        _, following = await speculator.turn(action.history, chosen, execute=_after(5.0, Outcome("ok")))
        assert following is not None
        assert await following
        await speculator.close()
        return following.hit

    assert run_virtual(main()) is False


async def _after(seconds: float, result: Any) -> Any:
    await asyncio.sleep(seconds)
    return result
