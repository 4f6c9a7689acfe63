"""Equal requests under way are generated once, and everyone has the completion that the engine alone would give."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from obsspec_gym.agents.engine.base import Capabilities, Engine, EngineLoad
from obsspec_gym.agents.engine.sharing import SharingEngine
from obsspec_gym.agents.generation import Generation
from obsspec_gym.errors import EngineError, GenerationCancelled
from obsspec_gym.types import Completion, Hint, Priority, Sampling

GREEDY, SAMPLED = Sampling(temperature=0.0), Sampling()


class HoldingEngine:
    """Completes a request when it is told to."""

    def __init__(self, addressed_noise: bool = True) -> None:
        self.capabilities = Capabilities(addressed_noise=addressed_noise, priority=True, cancel=True)
        self.weights_version = 0
        self.closed = False
        self.asked: list[tuple[int, ...]] = []
        self.futures: list[asyncio.Future[Completion]] = []
        self.cancelled: list[int] = []
        self.promoted: list[int] = []

    def submit(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        seed: int,
        *,
        hint: Hint | None = None,
        priority: Priority = Priority.COMMITTED,
        draft: Sequence[int] = (),
    ) -> Generation:
        number = len(self.asked)
        self.asked.append((*prompt_ids, seed))
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self.futures.append(future)
        return Generation(
            future,
            lambda: self.cancelled.append(number),
            lambda: self.promoted.append(number),
            lambda: tuple(prompt_ids),
        )

    def finish(self, number: int) -> None:
        if not self.futures[number].done():
            self.futures[number].set_result(Completion((number,), (0.0,)))

    def load(self) -> EngineLoad:
        return EngineLoad(running=len(self.asked))

    def update_weights(self, weights: Any = None) -> int:
        self.weights_version += 1
        return self.weights_version

    def close(self) -> None:
        self.closed = True


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_joins_what_is_equal_and_under_way_and_nothing_else() -> None:
    async def main() -> None:
        engine = HoldingEngine()
        sharing = SharingEngine(engine)
        assert isinstance(sharing, Engine)
        first, second = sharing.submit((1, 2), GREEDY, 3), sharing.submit([1, 2], GREEDY, 4)
        assert len(engine.asked) == 1, "greedy: the seed plays no part"
        sharing.submit((1, 2, 3), GREEDY, 3)
        sharing.submit((1, 2), SAMPLED, 3)
        sharing.submit((1, 2), SAMPLED, 4)
        sharing.submit((1, 2), SAMPLED, 3)
        assert [asked[-1] for asked in engine.asked] == [3, 3, 3, 4]
        assert first.partial() == (1, 2)
        engine.finish(0)
        assert [(await each).token_ids for each in (first, second)] == [(0,), (0,)]
        await settle()
        sharing.submit((1, 2), GREEDY, 3)
        assert len(engine.asked) == 5, "what is done is not under way"
        assert sharing.load() == engine.load()
        sharing.close()
        assert not engine.closed, "the engine is the caller's"

    asyncio.run(main())


def test_new_weights_join_nothing_of_the_old_ones() -> None:
    async def main() -> None:
        engine = HoldingEngine()
        sharing = SharingEngine(engine)
        old = sharing.submit((1,), GREEDY, 0)
        assert sharing.update_weights() == sharing.weights_version == 1
        new = sharing.submit((1,), GREEDY, 0)
        engine.finish(1)
        engine.finish(0)
        assert ((await old).token_ids, (await new).token_ids) == ((0,), (1,))

    asyncio.run(main())


def test_samples_of_an_engine_without_addressed_noise_are_independent() -> None:
    async def main() -> None:
        engine = HoldingEngine(addressed_noise=False)
        sharing = SharingEngine(engine)
        for sampling in (SAMPLED, SAMPLED, GREEDY, GREEDY):
            sharing.submit((1,), sampling, 0)
        assert len(engine.asked) == 3

    asyncio.run(main())


def test_a_committed_request_commits_what_it_joins() -> None:
    async def main() -> None:
        engine = HoldingEngine()
        sharing = SharingEngine(engine)
        first = sharing.submit((1,), GREEDY, 0, priority=Priority.SPECULATIVE)
        sharing.submit((1,), GREEDY, 0, priority=Priority.SPECULATIVE)
        assert engine.promoted == []
        sharing.submit((1,), GREEDY, 0)
        first.promote()
        assert engine.promoted == [0, 0]

    asyncio.run(main())


def test_an_error_is_everyones() -> None:
    async def main() -> None:
        engine = HoldingEngine()
        sharing = SharingEngine(engine)
        both = [sharing.submit((1,), GREEDY, 0) for _ in range(2)]
        engine.futures[0].set_exception(EngineError("it broke"))
        for each in both:
            with pytest.raises(EngineError, match="it broke"):
                await each
        sharing.submit((1,), GREEDY, 0)
        assert len(engine.asked) == 2

    asyncio.run(main())


steps = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(0, 2)),
        st.tuples(st.just("cancel"), st.integers(0, 30)),
        st.tuples(st.just("finish"), st.integers(0, 30)),
        st.tuples(st.just("weights"), st.just(0)),
        st.tuples(st.just("settle"), st.just(0)),
    ),
    max_size=30,
)


@given(steps)
def test_whoever_still_waits_is_answered_and_only_what_nobody_waits_for_is_cancelled(steps: list[Any]) -> None:
    async def main() -> None:
        engine = HoldingEngine()
        sharing = SharingEngine(engine)
        mine: list[Generation] = []
        cancelled = set[int]()
        for step, number in steps:
            if step == "submit":
                mine.append(sharing.submit((number,), GREEDY, 0))
            elif step == "cancel" and number < len(mine):
                if not mine[number].done():
                    cancelled.add(number)
                mine[number].cancel()
            elif step == "finish" and number < len(engine.futures):
                engine.finish(number)
            elif step == "weights":
                sharing.update_weights()
            elif step == "settle":
                await settle()
        for number in range(len(engine.futures)):
            engine.finish(number)
        await settle()
        answers = dict[int, int]()
        for number, generation in enumerate(mine):
            if number in cancelled:
                with pytest.raises(GenerationCancelled):
                    generation.result()
            else:
                [answers[number]] = generation.result().token_ids
        asked = [prompt for prompt, _ in engine.asked]
        submitted = [number for step, number in steps if step == "submit"]
        assert all(asked[answer] == submitted[number] for number, answer in answers.items())
        assert not set(engine.cancelled) & set(answers.values())
        assert len(engine.cancelled) == len(set(engine.cancelled))
        assert not sharing._under_way

    asyncio.run(main())
