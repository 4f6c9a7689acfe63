"""I6: a policy without addressed noise keeps its distribution, however its generations are kept, dropped or redone."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest

from obsspec_gym.agents.fakes import ScriptedWorldModel
from obsspec_gym.agents.history import History
from obsspec_gym.agents.policy import CallablePolicy
from obsspec_gym.speculation.clock import run_virtual
from obsspec_gym.speculation.futures import Future
from obsspec_gym.speculation.selector import FixedSelector
from obsspec_gym.speculation.speculator import Speculator
from obsspec_gym.types import Action, EpisodeId, Outcome, Prediction

CHANCES = {"stop": 0.4, "look": 0.3, "edit": 0.2, "think": 0.1}
SECONDS = {"stop": 0.1, "look": 0.4, "edit": 0.9, "think": 2.0}
"""What is long to generate says something else: whoever prefers what is finished prefers short actions."""

EPISODES = 1500
TURNS = 4
MATCH_RATE = 0.6


class Coins:
    """One stream of random numbers: what is drawn depends on the order of events, as on a server without seeds."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def action(self) -> str:
        return self._random.choices(list(CHANCES), list(CHANCES.values()))[0]

    def unit(self) -> float:
        return self._random.random()


async def play(seed: int, depth: int) -> dict[bool, Counter[str]]:
    """The actions of many episodes, but the first of each: those whose generation began ahead, and the others."""
    coins = Coins(seed)
    drawn: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}

    async def think(history: History, seed: int) -> Action:
        action = coins.action()
        await asyncio.sleep(SECONDS[action])
        return action

    async def predict(history: History, action: Action, n: int, partial: str) -> list[Prediction]:
        await asyncio.sleep(0.05 * coins.unit())
        return [Prediction("it worked" if coins.unit() < MATCH_RATE else "it failed")]

    async def tool() -> Outcome:
        await asyncio.sleep(1.5 * coins.unit())  # any generation may be finished by then, or not
        return Outcome("it worked")

    speculator = Speculator(
        CallablePolicy(think, addressed_noise=False), ScriptedWorldModel(predict), FixedSelector(depth, 1)
    )
    for episode in range(EPISODES):
        pending: Any = speculator.start(EpisodeId("task", episode), "go")
        for turn in range(TURNS):
            action = await pending
            if turn:
                drawn[pending.hit][action] += 1
            _, pending = await speculator.turn(pending.history, action, execute=tool())
        speculator.end(EpisodeId("task", episode))
    await speculator.close()
    return drawn


def chi_square_tail(counts: Counter[str]) -> float:
    """The probability of counts at least as far from the policy's distribution (Wilson-Hilferty)."""
    total = counts.total()
    statistic = sum((counts[action] - total * chance) ** 2 / (total * chance) for action, chance in CHANCES.items())
    freedom = len(CHANCES) - 1
    spread = 2 / (9 * freedom)
    normal = ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
    return 0.5 * math.erfc(normal / math.sqrt(2))


@contextmanager
def only_finished_ones_are_kept() -> Iterator[None]:
    """The tempting mistake."""

    def usable(future: Future) -> bool:
        return future.generation is not None and future.generation.done() and not future.generation.failed()

    with mock.patch.object(Future, "usable", property(usable)):
        yield


@pytest.mark.parametrize("depth", [1, 3])
def test_kept_and_regenerated_actions_have_the_policys_distribution(depth: int) -> None:
    drawn = run_virtual(play(11, depth))
    assert min(counts.total() for counts in drawn.values()) > 1000
    for counts in (drawn[True] + drawn[False], drawn[True], drawn[False]):
        assert chi_square_tail(counts) > 0.001, counts


@pytest.mark.parametrize("depth", [1, 3])
def test_keeping_only_the_finished_ones_is_caught(depth: int) -> None:
    with only_finished_ones_are_kept():
        drawn = run_virtual(play(11, depth))
    everything = drawn[True] + drawn[False]
    assert chi_square_tail(everything) < 1e-9, everything
    assert everything["think"] < 0.9 * CHANCES["think"] * everything.total()


def test_the_tail_is_that_of_the_chi_square_distribution() -> None:
    """7.815 and 16.266 are the 5 % and 0.1 % points at three degrees of freedom."""
    for statistic, tail in ((7.815, 0.05), (16.266, 0.001)):
        shift = math.sqrt(statistic * 0.4 * 0.3 / 0.7 / 10000) * 10000
        counts = Counter({action: chance * 10000 for action, chance in CHANCES.items()})
        counts["stop"] += shift  # type: ignore[assignment]
        counts["look"] -= shift  # type: ignore[assignment]
        assert chi_square_tail(counts) == pytest.approx(tail, rel=0.2)
