"""The table: what followed the same observation and action, most frequent first; bounded."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from obsspec_gym.agents.history import History
from obsspec_gym.agents.world_model.base import WorldModel
from obsspec_gym.agents.world_model.tabular import TabularWorldModel
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.types import EpisodeId, Outcome, Transition


def at(observation: Any, task: str = "walk", visible: Any = None) -> History:
    return History.start(EpisodeId(task), observation, visible=visible)


def learn(table: TabularWorldModel, before: Any, action: Any, *after: Any) -> None:
    for outcome in after:
        real = outcome if isinstance(outcome, Outcome) else Outcome(outcome)
        table.observe(Transition(at(before).act(action), real, 0.1))


def ask(table: TabularWorldModel, history: History, action: Any, n: int = 9, partial: str = "") -> list[Any]:
    predictions = asyncio.run(table.predict(history, action, n, partial))
    return [(p.observation, p.ends, p.probability) for p in predictions]


def test_the_most_frequent_comes_first_and_of_equals_the_most_recent() -> None:
    table = TabularWorldModel()
    assert isinstance(table, WorldModel)
    learn(table, 3, "left", 1, 2, 2, 4, 1, Outcome(2, ends=True))
    assert ask(table, at(3, "elsewhere"), "left") == [
        (1, False, 2 / 7), (2, False, 2 / 7), (2, True, 1 / 7), (4, False, 1 / 7)
    ]  # fmt: skip
    assert ask(table, at(3), "left", n=1) == [(1, False, 2 / 7)]


def test_another_observation_action_or_mask_is_another_place() -> None:
    table = TabularWorldModel()
    learn(table, np.int64(3), 1, 5)
    assert ask(table, at(np.int64(3)), np.int8(1)) == [(5, False, 0.5)]
    assert ask(table, at(np.int64(3)), 2) == []
    assert ask(table, at(np.int64(4)), 1) == []
    assert ask(table, at(np.float64(3)), 1) == []
    assert ask(table, at(np.int64(3), visible={"mask": 1}), 1) == []


def test_what_is_printed_already_must_fit() -> None:
    table = TabularWorldModel()
    learn(table, "a", "ls", "one\ntwo", "three")
    assert [text for text, *_ in ask(table, at("a"), "ls", partial="one\n")] == ["one\ntwo"]


def test_it_is_bounded() -> None:
    table = TabularWorldModel(capacity=2, outcomes=2)
    learn(table, 0, "a", 1, 1, 2, 3)
    assert [value for value, *_ in ask(table, at(0), "a")] == [1, 3]
    learn(table, 1, "a", 1)
    learn(table, 0, "a", 1)
    learn(table, 2, "a", 1)
    assert len(table) == 2
    assert ask(table, at(1), "a") == []
    with pytest.raises(InvalidArgumentError, match="capacity and outcomes must be >= 1, got 0 and 8"):
        TabularWorldModel(capacity=0)
