"""vLLM's own speculative decoding: what it leaves the same, and what not."""

from __future__ import annotations

import asyncio
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed here: make test-vllm")

from obsspec_gym.agents.engine.vllm import VLLMEngine
from obsspec_gym.errors import ClosedError, GenerationCancelled
from obsspec_gym.types import Sampling
from tests.vllm.parts import greedy_by_transformers, until

needs_suffix = pytest.mark.skipif(find_spec("arctic_inference") is None, reason="arctic-inference is not installed")
PROMPTS = [[5, 6, 7, 8, 5, 6, 7, 8, 5, 6, i % 5] for i in range(5)]  # something to guess from


async def complete(engine: Any, sampling: Sampling) -> list[Any]:
    generations = [engine.submit(prompt, sampling, 100 + i) for i, prompt in enumerate(PROMPTS)]
    return [await generation for generation in generations]


@pytest.mark.parametrize("own_drafts", ["ngram", pytest.param("suffix", marks=needs_suffix)])
def test_greedy_completions_are_those_without_drafts(model: Any, model_path: Path, own_drafts: Any) -> None:
    greedy, sampled = Sampling(temperature=0, max_tokens=60), Sampling(temperature=0.7, max_tokens=40)
    expected = [greedy_by_transformers(model, prompt, 60) for prompt in PROMPTS]
    threads = len([thread for thread in threading.enumerate() if thread.name == "obsspec-vllm"])
    with VLLMEngine(model_path, own_drafts=own_drafts) as engine:
        assert not engine.capabilities.addressed_noise
        for _ in range(2):  # the second time there is more to guess from
            for completion, (tokens, logprobs) in zip(asyncio.run(complete(engine, greedy)), expected, strict=True):
                assert completion.token_ids == tokens
                assert completion.logprobs == pytest.approx(logprobs, abs=1e-5)
        assert engine.metrics.accepted_drafts > 0
        completions = asyncio.run(complete(engine, sampled))
        assert all(len(c.token_ids) == len(c.logprobs) == 40 for c in completions)
        asyncio.run(close_with_work_under_way(engine))
    assert len([thread for thread in threading.enumerate() if thread.name == "obsspec-vllm"]) == threads


async def close_with_work_under_way(engine: Any) -> None:
    generation = engine.submit([1], Sampling(max_tokens=400), 0)
    await until(lambda: bool(generation.partial()))
    engine.close()
    with pytest.raises(GenerationCancelled):
        await generation
    with pytest.raises(ClosedError):
        engine.submit([1], Sampling(), 0)
