"""The adaptive selector: speculates where it pays, leaves it where it does not, and says why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from obsspec_gym.agents.engine.base import EngineLoad
from obsspec_gym.agents.history import History
from obsspec_gym.benchmarks.selectors import Cell, grid, run_cell
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.speculation.adaptive import LOOK_AGAIN, AdaptiveSelector
from obsspec_gym.speculation.record import Fate, FutureRecord, PredictionRecord, Span, TurnRecord
from obsspec_gym.speculation.selector import Budget, Candidate
from obsspec_gym.types import EpisodeId, Prediction

EPISODE = EpisodeId("task")
DISCARDED = FutureRecord(Span(0.0, 1.0), Fate.DISCARDED, 10, 1)


def acted(command: str = "make") -> History:
    return History.start(EPISODE, "do it", (0,) * 50).act(command, (0,) * 10)


def teach(
    selector: AdaptiveSelector,
    *,
    tool: float = 2.0,
    matched: bool = True,
    generation: float = 1.0,
    asking: float = 0.05,
    command: str = "make",
    times: int = 40,
) -> AdaptiveSelector:
    """Has it see so many turns of one kind."""
    history = acted("ls").observe("out").act(command)
    for turn in range(times):
        selector.budget(history)
        record = TurnRecord(
            EPISODE, turn, Span(0.0, generation), 50, False, generation, 0.0, None, Span(generation, generation + tool),
            False,
            predictions=tuple(
                PredictionRecord("model", 1.0, Span(0.0, asking), matched and rank == 0, False, rank=rank)
                for rank in range(4)
            ),
            futures=() if matched else (DISCARDED,),
        )  # fmt: skip
        selector.observe(history, record)
    return selector


def candidate(level: int = 1, reached: float = 1.0, elapsed: float = 0.05, probability: float = 1.0) -> Candidate:
    prediction = Prediction("out", probability=probability)
    return Candidate(acted(), prediction, 0, level, reached, elapsed, Budget(1, 1))


def test_it_speculates_where_tools_are_slow_and_predictions_right() -> None:
    selector = teach(AdaptiveSelector())
    budget = selector.budget(acted())
    assert budget.depth >= 1
    assert budget.generate
    assert "match 1.00" in budget.reason
    assert "hides" in budget.reason
    assert "price 0.00" in budget.reason
    assert selector.chance(candidate()) > 0.9


def test_it_leaves_tools_alone_that_end_before_a_prediction_is_there() -> None:
    selector = teach(AdaptiveSelector(), tool=0.001)
    budgets = [selector.budget(acted()) for _ in range(32)]
    assert [budget.depth for budget in budgets].count(0) == 28
    assert not any(budget.generate for budget in budgets if budget.depth)
    assert "end before a prediction is there" in budgets[0].reason


def test_what_is_always_wrong_is_only_compared_now_and_then() -> None:
    selector = teach(AdaptiveSelector(), matched=False, times=120)
    selector.attach(lambda: EngineLoad(running=8))
    budgets = [selector.budget(acted()) for _ in range(32)]
    assert all(budget.depth == 0 or not budget.generate for budget in budgets)
    assert any(budget.depth for budget in budgets)  # or it would never learn that predictions have become right
    teach(selector, times=400)
    assert selector.budget(acted()).generate


def test_kinds_of_commands_are_told_apart() -> None:
    selector = AdaptiveSelector()
    for _ in range(10):
        teach(selector, tool=10.0, command="make", times=8)
        teach(selector, tool=0.001, command="echo", times=8)
    assert selector.budget(acted("make")).depth >= 1
    assert [selector.budget(acted("echo")).depth for _ in range(4)].count(0) >= 3


def test_what_was_done_before_is_told_apart_from_what_is_new() -> None:
    new, again = acted("ls").observe("out").act("cat a"), acted("cat a").observe("out").act("cat a")
    selector = AdaptiveSelector()
    selector.attach(lambda: EngineLoad(running=8))
    for turn in range(120):
        history = (new, again)[turn % 2]
        prediction = PredictionRecord("model", 1.0, Span(0.0, 0.05), history is again, False, rank=0)
        selector.observe(history, TurnRecord(
            EPISODE, 1, Span(0.0, 1.0), 50, False, 1.0, 0.0, None, Span(1.0, 3.0), False, predictions=(prediction,)
        ))  # fmt: skip
    assert "match 0.9" in selector.budget(again).reason
    assert "match 0.0" in selector.budget(new).reason
    assert "match 0.9" in selector.budget(acted("cat b").observe("out").act("cat b")).reason
    assert "match 0.0" in selector.budget(acted("cat b")).reason


def test_a_busy_engine_is_left_alone() -> None:
    selector = teach(AdaptiveSelector())
    assert selector.chance(candidate()) > 0
    selector.attach(lambda: EngineLoad(running=4, waiting=2))  # for the step under way to end
    assert selector.chance(candidate()) > 0
    selector.attach(lambda: EngineLoad(running=4, waiting=40))
    assert [selector.chance(candidate()) for _ in range(4)][-1] == 0.0
    assert "price 1.00" in selector.budget(acted()).reason
    selector.attach(lambda: EngineLoad(running=1, capacity_tokens=60))  # the real histories fill its cache
    selector.budget(acted())
    assert selector.chance(candidate()) == 0.0


def test_processors_that_tools_need_are_left_to_them() -> None:
    selector = teach(teach(AdaptiveSelector(), times=60), matched=False, times=40)
    assert selector.budget(acted()).generate
    selector.attach(lambda: EngineLoad(running=1, contended=0.9))
    budgets = [selector.budget(acted()) for _ in range(16)]
    assert not any(budget.generate for budget in budgets if budget.depth)
    assert "price 0.90" in budgets[0].reason
    assert selector.chance(candidate()) == 0.0


def test_where_no_processor_is_free_nothing_is_asked_to_learn_something() -> None:
    selector = AdaptiveSelector()
    assert selector.budget(acted()).generate  # nothing is known
    selector.attach(lambda: EngineLoad(running=1, contended=1.0))
    budgets = [selector.budget(acted()) for _ in range(LOOK_AGAIN)]
    assert [budget.depth for budget in budgets] == [0] * (LOOK_AGAIN - 1) + [1]
    assert not budgets[-1].generate


def test_what_a_wrong_guess_leaves_as_a_draft_is_worth_something() -> None:
    def after(selector: AdaptiveSelector, accepted: int) -> float:
        following = acted().observe("out").act("make")
        for _ in range(40):
            record = TurnRecord(EPISODE, 1, Span(3.0, 4.0), 50, False, 4.0, 0.0, None, Span(4.0, 6.0), False,
                                futures=(DISCARDED,), draft=10, accepted=accepted)  # fmt: skip
            selector.observe(following, record)
        selector.attach(lambda: EngineLoad(running=8))
        return selector.chance(candidate())

    wrong = [teach(AdaptiveSelector(), matched=False, times=120) for _ in range(2)]
    assert after(wrong[0], accepted=0) == 0.0
    assert 0.0 < after(wrong[1], accepted=9) < 0.1  # as improbable as before, and generated all the same


def test_deeper_futures_are_worth_less() -> None:
    selector = teach(AdaptiveSelector())
    assert selector.chance(candidate()) > selector.chance(candidate(level=1, reached=0.5)) > 0
    assert selector.chance(replace(candidate(reached=0.001), rank=1)) == 0.0


def test_a_budget_that_only_compares_generates_nothing() -> None:
    selector = teach(AdaptiveSelector())
    assert selector.chance(replace(candidate(), budget=Budget(1, 1, generate=False))) == 0.0


@pytest.mark.parametrize("wrong", [{"max_depth": 0}, {"max_breadth": 0}, {"caution": -1.0}])
def test_bad_bounds_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidArgumentError, match="an adaptive selector needs"):
        AdaptiveSelector(**wrong)  # type: ignore[arg-type]


def test_the_grid_covers_every_axis() -> None:
    cells = grid(64, seed=0)
    assert len(set(cells)) == 64
    assert {cell.rollouts for cell in cells} == {1, 4, 16, 64, 256}
    assert {cell.match_rate for cell in cells} >= {0.0, 1.0}


@pytest.mark.parametrize(
    ("cell", "best"),
    [
        (Cell(1, 0.9, 30.0, 0.5, 0.5), 0.9),  # an idle engine, tools that last: nearly all of the best fixed saving
        (Cell(4, 0.0, 3.0, 0.05, 2.0), 1.01),  # never right
        (Cell(4, 0.9, 0.001, 0.5, 1.0), 1.0),  # tools end before predictions
    ],
)
def test_simulated_cells(cell: Cell, best: float) -> None:
    result = run_cell(cell, 4, 0)
    assert result["adaptive_ratio"] <= best
    assert set(result["ratios"]) >= {"D1K1", "D8K1", "D8K8"}
