"""vLLM's own speculative decoding: what it leaves the same, and what not."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed here: make test-vllm")

from obsspec_gym.agents.engine.vllm import VLLMEngine
from obsspec_gym.types import Sampling

needs_suffix = pytest.mark.skipif(find_spec("arctic_inference") is None, reason="arctic-inference is not installed")
PROMPTS = [[5, 6, 7, 8, 5, 6, 7, 8, 5, 6, i % 5] for i in range(12)]  # something to guess from


async def complete(engine: Any, sampling: Sampling) -> list[Any]:
    generations = [engine.submit(prompt, sampling, 100 + i) for i, prompt in enumerate(PROMPTS)]
    return [await generation for generation in generations]


@pytest.mark.parametrize("own_drafts", ["ngram", pytest.param("suffix", marks=needs_suffix)])
def test_greedy_completions_are_those_without_drafts(engine: Any, model_path: Path, own_drafts: Any) -> None:
    greedy, sampled = Sampling(temperature=0, max_tokens=80), Sampling(temperature=0.7, max_tokens=40)
    plain = asyncio.run(complete(engine, greedy))
    with VLLMEngine(model_path, own_drafts=own_drafts) as drafting:
        assert not drafting.capabilities.addressed_noise
        for _ in range(2):  # the second time there is more to guess from
            drafted = asyncio.run(complete(drafting, greedy))
            assert [c.token_ids for c in drafted] == [c.token_ids for c in plain]
            for one, other in zip(drafted, plain, strict=True):
                assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)
        assert drafting.metrics.accepted_drafts > 0
        completions = asyncio.run(complete(drafting, sampled))
    assert all(len(c.token_ids) == len(c.logprobs) == 40 for c in completions)
