"""New weights: what is generated with them, and what becomes of what was under way (I7)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed here: make test-vllm")

import torch

from obsspec_gym.agents.engine.vllm import VLLMEngine
from obsspec_gym.errors import GenerationCancelled, InvalidArgumentError
from obsspec_gym.types import Priority, Sampling
from tests.vllm.parts import greedy_by_transformers, saved, tiny_model, until

PROMPT = list(range(10, 90))  # more than two blocks of the prefix cache
GREEDY = Sampling(temperature=0, max_tokens=24)


@pytest.fixture(scope="module")
def untied() -> Iterator[tuple[Any, Any]]:
    """A model in this program that changes, with an output layer of its own, and an engine that was made from it."""
    model = tiny_model(3, tied=False)
    with VLLMEngine(model) as engine:
        yield model, engine


@pytest.fixture(params=["tied", "untied"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Any, Any]]:
    """A model and an engine that computes with its weights."""
    if request.param == "untied":
        yield request.getfixturevalue("untied")
        return
    model, engine = tiny_model(3), request.getfixturevalue("engine")
    engine.update_weights(dict(model.named_parameters()))
    yield model, engine
    engine.update_weights()  # those of its directory, for whoever comes next


async def greedy(engine: Any) -> Any:
    return await engine.submit(PROMPT, GREEDY, 0)


def same_as_transformers(engine: Any, model: Any) -> tuple[int, ...]:
    completion = asyncio.run(greedy(engine))
    tokens, logprobs = greedy_by_transformers(model, PROMPT, GREEDY.max_tokens)
    assert completion.token_ids == tokens
    assert completion.logprobs == pytest.approx(logprobs, abs=1e-5)
    assert completion.weights_version == engine.weights_version
    return tokens


def test_after_each_update_greedy_output_is_that_of_transformers(pair: tuple[Any, Any]) -> None:
    """Twice with the same prompt: what is remembered of it must be of the new weights too."""
    model, engine = pair
    seen = {same_as_transformers(engine, model)}
    for step in range(3):
        with torch.no_grad():
            for parameter in model.parameters():  # an optimiser's step, in place
                parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(step)) * 0.05)
        version = engine.weights_version
        assert engine.update_weights(dict(model.named_parameters())) == version + 1
        seen.add(same_as_transformers(engine, model))
        seen.add(same_as_transformers(engine, model))
    assert len(seen) == 4

    other = tiny_model(11, tied=model.config.tie_word_embeddings)
    engine.update_weights(dict(other.named_parameters()))
    same_as_transformers(engine, other)
    engine.update_weights(iter(list(model.named_parameters())))
    same_as_transformers(engine, model)


def test_what_is_under_way_at_an_update(pair: tuple[Any, Any]) -> None:
    """Futures are dropped; a committed generation starts over and is wholly of the version it names."""
    model, engine = pair
    long = Sampling(max_tokens=300)
    other = tiny_model(12, tied=model.config.tie_word_embeddings)

    async def main() -> None:
        futures = [engine.submit([i, 2], long, i, priority=Priority.SPECULATIVE) for i in range(4)]
        kept = engine.submit([9, 2], long, 9, priority=Priority.SPECULATIVE)
        committed = engine.submit([8, 2], long, 8)
        kept.promote()
        await until(lambda: len(committed.partial()) > 5 and len(kept.partial()) > 5)
        version = engine.update_weights(dict(other.named_parameters()))
        for future in futures:
            with pytest.raises(GenerationCancelled):
                await future
        for number, generation in ((8, committed), (9, kept)):
            completion = await generation
            assert completion.weights_version == version
            again = await engine.submit([number, 2], long, number)
            assert (again.token_ids, again.logprobs) == (completion.token_ids, completion.logprobs)
        gone = engine.submit([8, 2], long, 8)
        gone.cancel()
        engine.update_weights(dict(other.named_parameters()))
        assert engine.load().speculative == 0

    asyncio.run(main())


def test_wrong_weights_are_refused_and_change_nothing(pair: tuple[Any, Any]) -> None:
    model, engine = pair
    engine.update_weights(dict(model.named_parameters()))
    state = dict(model.named_parameters())
    version = engine.weights_version
    with pytest.raises(InvalidArgumentError, match=r"expected a parameter named 'model\.norm\.weight'"):
        engine.update_weights({name: tensor for name, tensor in state.items() if name != "model.norm.weight"})
    with pytest.raises(InvalidArgumentError, match=r"expected 'model\.norm\.weight' of shape \(64,\), got \(1,\)"):
        engine.update_weights({**state, "model.norm.weight": torch.ones(1)})
    assert engine.weights_version == version
    same_as_transformers(engine, model)


def test_none_reads_the_source_again(untied: tuple[Any, Any], engine: Any, model: Any, model_path: Path) -> None:
    changed, made_from_it = untied
    with torch.no_grad():
        changed.model.norm.weight.mul_(0.5)
    made_from_it.update_weights()
    same_as_transformers(made_from_it, changed)

    other = tiny_model(6)
    saved(other, model_path)
    engine.update_weights()
    same_as_transformers(engine, other)
    saved(model, model_path)
    engine.update_weights()
    same_as_transformers(engine, model)
