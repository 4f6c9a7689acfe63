"""CascadeWorldModel: the next model is asked on a miss, a broken one costs only its own share."""

from __future__ import annotations

import asyncio

import pytest

from obsspec_gym.agents.fakes import ScriptedWorldModel
from obsspec_gym.agents.history import History
from obsspec_gym.agents.world_model.base import WorldModel
from obsspec_gym.agents.world_model.cascade import CascadeWorldModel
from obsspec_gym.agents.world_model.memory import MemoryWorldModel
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.speculation.clock import run_virtual
from obsspec_gym.types import Action, EpisodeId, Outcome, Prediction, Transition

START = History.start(EpisodeId("t"), "do it")


def says(*predictions: tuple[str, float], source: str = "x") -> ScriptedWorldModel:
    async def behave(history: History, action: Action, n: int, partial: str) -> list[Prediction]:
        return [Prediction(text, False, p, source) for text, p in predictions][:n]

    return ScriptedWorldModel(behave)


def ask(model: WorldModel, n: int = 1, partial: str = "") -> list[Prediction]:
    return asyncio.run(model.predict(START, "ls", n, partial))


def test_a_sure_prediction_spares_the_next_model() -> None:
    first, second = says(("a", 0.9), source="memory"), says(("b", 0.9), source="lm")
    assert [p.observation for p in ask(CascadeWorldModel([first, second]))] == ["a"]
    assert second.calls == []


def test_the_next_model_is_asked_on_a_miss_with_all_that_is_known() -> None:
    second = says(("b", 0.9), source="lm")
    [prediction] = ask(CascadeWorldModel([says(), second]), partial="b")
    assert (prediction.observation, prediction.source) == ("b", "lm")
    assert second.calls == [(START, "ls", 1, "b")]


def test_an_unsure_prediction_is_compared_with_the_next_model_s() -> None:
    cascade = CascadeWorldModel([says(("a", 0.2)), says(("b", 0.7))])
    assert [p.observation for p in ask(cascade)] == ["b"]
    cascade = CascadeWorldModel([says(("a", 0.4)), says(("b", 0.1))])
    assert [p.observation for p in ask(cascade)] == ["a"]


def test_fills_up_to_n_with_distinct_outcomes_of_the_next_model() -> None:
    cascade = CascadeWorldModel([says(("a", 0.7)), says(("a", 0.9), ("b", 0.2), ("c", 0.1))])
    predictions = ask(cascade, n=3)
    assert [p.observation for p in predictions] == ["a", "b", "c"]
    assert [p.probability for p in predictions] == pytest.approx([0.9, 0.1, 0.0])
    assert len(ask(cascade, n=2)) == 2


def test_improbable_predictions_are_dropped() -> None:
    cascade = CascadeWorldModel([says(("a", 0.7), ("b", 0.2))], min_probability=0.3)
    assert [p.observation for p in ask(cascade, n=4)] == ["a"]


def test_a_failing_model_costs_only_its_own_share() -> None:
    failing = ScriptedWorldModel.raising()
    cascade = CascadeWorldModel([failing, says(("a", 0.7))])
    assert [p.observation for p in ask(cascade)] == ["a"]
    assert cascade.failures == {0: 1}
    with pytest.raises(RuntimeError, match="always fails"):
        ask(CascadeWorldModel([says(), failing]))
    unsure = CascadeWorldModel([says(("a", 0.1)), failing])
    assert [p.observation for p in ask(unsure)] == ["a"]


def test_a_model_that_is_always_late_is_asked_now_and_then_and_the_first_always() -> None:
    delay = 0.0

    async def behave(history: History, action: Action, n: int, partial: str) -> list[Prediction]:
        await asyncio.sleep(delay)
        return [Prediction("b", False, 0.9, "lm")]

    slow = ScriptedWorldModel(behave)

    async def main(seconds: float, times: int) -> int:
        nonlocal delay
        calls, delay = len(slow.calls), seconds
        for _ in range(times):
            question = asyncio.ensure_future(cascade.predict(START, "ls", 1))
            await asyncio.wait({question}, timeout=1.0)  # then the tool has ended
            question.cancel()
            await asyncio.wait({question})
        return len(slow.calls) - calls

    first = says()
    cascade = CascadeWorldModel([first, slow])
    assert run_virtual(main(0.5, times=40)) == 40
    assert run_virtual(main(5.0, times=40)) < 15
    assert run_virtual(main(0.5, times=60)) > 20  # it has been noticed that it is in time again
    assert len(first.calls) == 140


def test_patience_ends_a_hanging_model() -> None:
    hanging = ScriptedWorldModel.hanging()
    cascade = CascadeWorldModel([says(("a", 0.1)), hanging], patience=0.01)
    assert [p.observation for p in ask(cascade)] == ["a"]
    assert hanging.cancelled == 1
    with pytest.raises(TimeoutError):
        ask(CascadeWorldModel([ScriptedWorldModel.hanging()], patience=0.01))


def test_cancelling_reaches_the_model_that_is_being_asked() -> None:
    hanging = ScriptedWorldModel.hanging()

    async def main() -> None:
        task = asyncio.create_task(CascadeWorldModel([says(), hanging]).predict(START, "ls", 1))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert hanging.cancelled == 1


def test_every_model_is_told_what_happened() -> None:
    models = [says(), says()]
    transition = Transition(START.act("ls"), Outcome("a"), 0.1)
    CascadeWorldModel(models).observe(transition)
    assert [model.observed for model in models] == [[transition], [transition]]


def test_memory_first_then_the_model_then_memory() -> None:
    """The second time a command is run in the same place, nobody needs the model."""
    model = says(("right", 0.6), source="lm")
    cascade = CascadeWorldModel([MemoryWorldModel(), model], sure=0.3)
    [first] = ask(cascade)
    cascade.observe(Transition(START.act("ls"), Outcome("right"), 0.1))
    [second] = ask(cascade)
    assert (first.source, second.source) == ("lm", "memory:prefix")
    assert len(model.calls) == 1


def test_a_checkpoint_holds_what_each_model_learnt() -> None:
    cascade = CascadeWorldModel([says(), MemoryWorldModel()])
    cascade.observe(Transition(START.act("ls"), Outcome("a"), 0.1))
    state = cascade.state_dict()
    assert set(state) == {"1"}
    restored = CascadeWorldModel([says(), MemoryWorldModel()])
    restored.load_state_dict(state)
    assert ask(restored) == ask(cascade) != []


def test_closes_every_model_even_if_one_cannot_be_closed() -> None:
    class Unclosable(MemoryWorldModel):
        def close(self) -> None:
            raise OSError("stuck")

    last = says()
    with pytest.raises(ExceptionGroup) as raised:
        CascadeWorldModel([Unclosable(), last]).close()
    assert "stuck" in str(raised.value.exceptions[0])
    assert last.closed


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="at least one"):
        CascadeWorldModel([])
    with pytest.raises(InvalidArgumentError, match="sure"):
        CascadeWorldModel([says()], sure=2)
    with pytest.raises(InvalidArgumentError, match="patience"):
        CascadeWorldModel([says()], patience=0)
