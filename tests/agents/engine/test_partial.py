"""What a speculative generation has sampled so far: counted when it is given up, and the draft of what follows."""

from __future__ import annotations

import asyncio

import pytest
from tiny_models import qwen3

from obsspec_gym.agents.engine.transformers import DriverName, TransformersEngine
from obsspec_gym.types import Priority, Sampling


@pytest.mark.parametrize("driver", ["inline", "thread", "process"])
def test_a_cancelled_generation_tells_a_prefix_of_what_it_would_have_been(driver: DriverName) -> None:
    sampling = Sampling(max_tokens=60)

    async def main() -> None:
        with TransformersEngine(qwen3(), driver=driver) as engine:
            given_up = engine.submit([1, 2, 3], sampling, seed=7, priority=Priority.SPECULATIVE)
            while len(given_up.partial()) < 6:
                assert not given_up.done()
                await asyncio.sleep(0)
            given_up.cancel()
            partial = given_up.partial()
            whole = await engine.submit([1, 2, 3], sampling, seed=7, draft=partial)
            assert whole.token_ids[: len(partial)] == partial
            assert whole.accepted_draft_tokens >= len(partial) - 1
            undrafted = await engine.submit([1, 2, 3], sampling, seed=7)
            assert undrafted.token_ids == whole.token_ids
            assert given_up.cancelled()
            kept = engine.submit([1, 2, 3], sampling, seed=7, priority=Priority.SPECULATIVE)
            await kept
            assert kept.partial() == undrafted.token_ids

    asyncio.run(asyncio.wait_for(main(), 60))
