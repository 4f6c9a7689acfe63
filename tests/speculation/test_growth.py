"""What a tree of futures knows after a commit, and what a broken selector costs."""

from __future__ import annotations

import asyncio

import pytest

from obsspec_gym.agents.generation import Generation
from obsspec_gym.agents.history import History
from obsspec_gym.speculation.clock import run_virtual
from obsspec_gym.speculation.comparison import compare
from obsspec_gym.speculation.futures import Future, Futures
from obsspec_gym.speculation.selector import Candidate, FixedSelector, Off
from obsspec_gym.types import EpisodeId, Prediction

from .scenario import World, moody_world_model

SAYS = (0.6, 0.5, 0.4)
"""What predictions say of themselves, by level."""


def test_a_commit_divides_by_the_chance_of_what_came_true() -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()

        def future(history: History, chance: float) -> Future:
            generation = Generation(loop.create_future())
            return Future(history, generation, loop.time(), Prediction("ok"), chance=chance)

        first = History.start(EpisodeId("task"), "go")
        futures = Futures(future(first, 1.0))
        parent, chance = futures.root, 1.0
        for says in SAYS:
            chance *= says
            child = future(parent.history.act("go on").observe("ok"), chance)
            futures.add(parent, child)
            parent = child
        kept, discarded = futures.commit(first.act("go on").observe("ok"), ends=False)
        assert kept is futures.root
        assert not discarded
        assert len(futures) == 2
        return [future.chance for future in futures.root.walk()]

    assert run_virtual(main()) == pytest.approx([1.0, 0.5, 0.5 * 0.4])


class _Believing(FixedSelector):
    """Takes every prediction at its word, and keeps what it was asked."""

    def __init__(self, depth: int) -> None:
        super().__init__(depth, 1)
        self.reached: set[tuple[int, float]] = set()

    def chance(self, candidate: Candidate) -> float:
        self.reached.add((candidate.level, round(candidate.reached, 6)))
        return candidate.reached * 0.5


def test_what_grows_after_a_commit_starts_from_what_is_real() -> None:
    """At level n there are n - 1 predictions between what is real and the action, whatever was predicted before."""
    selector = _Believing(3)
    world = World(seed=2, turns=8, tool_scale=0.6)
    world.run(moody_world_model(world, 0.0, right=1.0), selector)
    assert selector.reached == {(1, 1.0), (2, 0.5), (3, 0.25)}


class _Broken(FixedSelector):
    def chance(self, candidate: Candidate) -> float:
        raise ZeroDivisionError("no price")


def test_a_selector_that_fails_declines_and_is_named() -> None:
    world = World(seed=4, turns=6)
    sequential = world.run(None, Off())
    broken = world.run(moody_world_model(world, 0.0, right=1.0), _Broken(2, 1))
    assert compare(sequential.trajectories, broken.trajectories).identical
    assert broken.world_model_failures == {}
    predictions = [prediction for turn in broken.turns for prediction in turn.predictions]
    assert broken.selector_failures == {"ZeroDivisionError: no price": len(predictions)}
    assert all(prediction.declined and prediction.matched for prediction in predictions)
    assert predictions
