"""Thousands of speculative requests, started and given up at random moments."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed here: make test-vllm")

from obsspec_gym.types import Priority, Sampling
from tests.vllm.parts import idle, until

REQUESTS, BYSTANDERS = 2000, 12


def test_an_abort_storm_leaves_nothing_and_disturbs_nobody(engine: Any) -> None:
    async def bystander(i: int) -> Any:
        return await engine.submit([200 + i, *range(i)], Sampling(max_tokens=60), 5000 + i)

    async def storm(random: Random) -> int:
        cancelled = 0
        for burst in range(REQUESTS // 20):
            generations = []
            for i in range(20):
                prompt = [random.randrange(200) for _ in range(random.randrange(1, 60))]
                sampling = Sampling(max_tokens=random.randrange(1, 200))
                generations.append(engine.submit(prompt, sampling, burst * 20 + i, priority=Priority.SPECULATIVE))
                if random.random() < 0.3:
                    await asyncio.sleep(random.random() * 0.004)
                if random.random() < 0.3:
                    random.choice(generations).cancel()
            await asyncio.sleep(random.random() * 0.03)
            random.shuffle(generations)
            for generation in generations:
                generation.cancel()
                cancelled += generation.cancelled()
                if random.random() < 0.1:
                    await asyncio.sleep(0)
        return cancelled

    async def main() -> None:
        before = [await bystander(i) for i in range(BYSTANDERS)]
        await until(lambda: idle(engine))
        during = [asyncio.ensure_future(bystander(i)) for i in range(BYSTANDERS)]
        assert await storm(Random(0)) > REQUESTS * 0.8
        # What they get is theirs, whatever was aborted beside them.
        assert [(c.token_ids, c.logprobs) for c in await asyncio.gather(*during)] == [
            (c.token_ids, c.logprobs) for c in before
        ]
        await until(lambda: idle(engine))
        load = engine.load()
        assert (load.running, load.waiting, load.speculative, load.cached_tokens) == (0, 0, 0, 0)

    asyncio.run(main())


def test_a_loop_that_ends_with_work_under_way_can_be_followed_by_another(engine: Any) -> None:
    left: list[Any] = []

    async def leaves() -> None:
        left.extend(engine.submit([i], Sampling(max_tokens=300), i, priority=Priority.SPECULATIVE) for i in range(10))
        await until(lambda: any(generation.partial() for generation in left))

    async def comes() -> Any:
        for generation in left:
            generation.cancel()
        completion = await engine.submit([5], Sampling(max_tokens=5), 5)
        await until(lambda: idle(engine))
        return completion

    asyncio.run(leaves())
    assert len(asyncio.run(comes()).token_ids) == 5
    assert not any(generation.done() for generation in left)  # nobody's loop lives to be told
