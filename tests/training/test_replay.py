"""The replay: bounded in steps and tokens, the newest drawn most, and the same draws again from a checkpoint."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.training.passages import Answer, Passage
from obsspec_gym.training.replay import Replay


def passage(name: int, length: int = 10, *, teaches: bool = True) -> Passage:
    answer = Answer(turn=0, start=length - 1, stop=length - 1 + teaches, empty=False, tool_seconds=1, hidable_seconds=1)
    return Passage(f"task {name}", 0, tuple(range(length)), (answer,))


def drawn(replay: Replay, seed: int, count: int = 3, tokens: int = 40) -> list[list[Passage]]:
    return replay.batches(count, tokens, Random(seed))


Steps = st.lists(st.lists(st.integers(2, 60), max_size=6), min_size=1, max_size=8)
"""For each policy step, the lengths of its passages."""


@settings(deadline=None)
@given(steps=Steps, window=st.integers(1, 5), capacity=st.integers(1, 200), half_life=st.floats(0.01, 100))
def test_it_holds_the_newest_within_its_bounds(
    steps: list[list[int]], window: int, capacity: int, half_life: float
) -> None:
    replay = Replay(window=window, capacity_tokens=capacity, half_life=half_life)
    names = iter(range(1000))
    added = []
    for lengths in steps:
        passages = [passage(next(names), length) for length in lengths]
        added.append(passages)
        replay.add(passages)
        recent = [each for step in added[-window:] for each in step]
        kept = [each for i, each in enumerate(recent) if sum(len(other.ids) for other in recent[i:]) <= capacity]
        assert len(replay) == len(kept)
        assert replay.tokens == sum(len(each.ids) for each in kept)
        found = {each.task_id for batch in drawn(replay, 0, tokens=capacity + 1) for each in batch}
        assert found == {each.task_id for each in kept}
    assert replay.clock == len(steps)


@settings(deadline=None)
@given(steps=Steps, count=st.integers(1, 5), tokens=st.integers(1, 150), seed=st.integers(0, 2**32))
def test_batches_are_as_many_and_as_large_as_asked_for(
    steps: list[list[int]], count: int, tokens: int, seed: int
) -> None:
    replay = Replay(window=100, capacity_tokens=10_000, half_life=2.0)
    for lengths in steps:
        replay.add([passage(i, length) for i, length in enumerate(lengths)])
    batches = drawn(replay, seed, count, tokens)
    assert all(batches)
    total = sum(len(each.ids) for batch in batches for each in batch)
    if len(replay):
        assert 1 <= len(batches) <= count
        assert count * tokens <= total < count * tokens + 60
        assert max(sum(len(each.ids) for each in batch) for batch in batches) < total / count + 60
    else:
        assert batches == []
    assert drawn(replay, seed, count, tokens) == batches

    # A passage is not drawn again before all others are.
    counts = Counter((each.task_id, len(each.ids)) for batch in batches for each in batch)
    if total <= replay.tokens:
        available = Counter((f"task {i}", length) for lengths in steps for i, length in enumerate(lengths))
        assert all(counts[key] <= available[key] for key in counts)


def test_age_halves_how_often_a_passage_is_drawn() -> None:
    replay = Replay(window=100, capacity_tokens=10_000, half_life=2.0)
    for name in range(5):
        replay.add([passage(name)])
    counts = Counter(drawn(replay, seed, count=1, tokens=1)[0][0].task_id for seed in range(4000))
    weights = {f"task {name}": 2.0 ** (-(4 - name) / 2.0) for name in range(5)}
    for name, weight in weights.items():
        assert counts[name] / 4000 == pytest.approx(weight / sum(weights.values()), abs=0.03)


def test_what_teaches_nothing_is_not_kept() -> None:
    replay = Replay(window=2, capacity_tokens=100, half_life=1.0)
    replay.add([passage(0, teaches=False)])
    assert (len(replay), replay.clock) == (0, 1)
    assert drawn(replay, 0) == []


@settings(deadline=None)
@given(before=Steps, after=Steps)
def test_a_restored_replay_goes_on_as_the_unbroken_one(before: list[list[int]], after: list[list[int]]) -> None:
    def make() -> Replay:
        return Replay(window=3, capacity_tokens=200, half_life=1.0)

    def feed(replay: Replay, steps: list[list[int]]) -> None:
        for lengths in steps:
            replay.add([passage(length, length) for length in lengths])

    unbroken, restored = make(), make()
    feed(unbroken, before)
    restored.load_state_dict(unbroken.state_dict())
    for replay in (unbroken, restored):
        feed(replay, after)
    assert drawn(restored, 5) == drawn(unbroken, 5)
    assert restored.state_dict() == unbroken.state_dict()


@pytest.mark.parametrize(
    "change", [{"window": 0}, {"capacity_tokens": 0}, {"half_life": 0.0}, {"half_life": float("nan")}]
)
def test_bounds_are_positive(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match="must be positive"):
        Replay(**{"window": 1, "capacity_tokens": 1, "half_life": 1.0, **change})
