"""Sequential and speculative collection on vLLM give the same trajectories (I2a)."""

from __future__ import annotations

import asyncio
import multiprocessing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed here: make test-vllm")

from obsspec_gym.agents.engine.vllm import VLLMEngine
from obsspec_gym.errors import EngineError
from obsspec_gym.speculation.comparison import compare
from obsspec_gym.speculation.record import Fate
from obsspec_gym.types import Sampling
from tests.vllm.parts import CONTEXT, World, logprob_difference, until

# Two layers, one head of 32 numbers of 4 bytes, keys and values, 32 tokens.
BLOCK_BYTES = 2 * 32 * 4 * 2 * 32
assert CONTEXT + 32 <= 20 * 32  # the longest request fits


def check(engine: Any, world: World, sampling: Sampling, *, turns: int, environments: int) -> Any:
    """Runs both ways; the speculative run must have had hits, misses and cancelled futures."""
    sequential = world.play(engine, sampling, turns=turns, environments=environments, speculate=False)
    speculative = world.play(engine, sampling, turns=turns, environments=environments, speculate=True)
    comparison = compare(sequential.trajectories, speculative.trajectories)
    assert comparison.identical, comparison.summary()
    assert comparison.turns >= turns
    assert logprob_difference(sequential, speculative) <= 1e-5
    assert sum(turn.hit for turn in speculative.turns) > turns / 10
    assert any(future.fate is Fate.CANCELLED for turn in speculative.turns for future in turn.futures)
    return speculative


def test_500_turns_in_mixed_batches_with_prefix_caching(engine: Any) -> None:
    check(engine, World(seed=1), Sampling(max_tokens=10), turns=500, environments=16)
    check(engine, World(seed=2), Sampling(max_tokens=10, temperature=0.8, top_p=0.9), turns=100, environments=4)


def test_under_preemption_and_when_vllm_dies(model_path: Path) -> None:
    """So little memory that requests lose theirs and begin again. Then its process is killed."""

    async def main() -> None:
        generation = engine.submit([1], Sampling(max_tokens=400), 0)
        await until(lambda: bool(generation.partial()))
        [process] = set(multiprocessing.active_children()) - before
        process.kill()
        with pytest.raises(EngineError, match="ended unexpectedly"):
            await generation
        with pytest.raises(EngineError, match="ended unexpectedly"):
            engine.submit([1], Sampling(), 0)

    before = set(multiprocessing.active_children())
    with VLLMEngine(model_path, max_running=16, kv_cache_bytes=20 * BLOCK_BYTES) as engine:
        check(engine, World(seed=3), Sampling(max_tokens=24), turns=120, environments=12)
        assert engine.metrics.preemptions > 0
        asyncio.run(main())
