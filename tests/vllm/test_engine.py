"""The engine protocol on vLLM: what goes in, what comes out, what is refused, what is released."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed here: make test-vllm")

from obsspec_gym.agents.engine.base import Engine
from obsspec_gym.agents.engine.vllm import VLLMEngine
from obsspec_gym.errors import EngineError, GenerationCancelled, InvalidArgumentError
from obsspec_gym.types import FinishReason, Priority, Sampling
from tests.vllm.parts import CONTEXT, VOCABULARY, facts, greedy_by_transformers, idle, until

PROMPT = [4, 5, 6, 7]


def test_it_is_an_engine_that_says_what_it_can(engine: Any) -> None:
    assert isinstance(engine, Engine)
    can = engine.capabilities
    assert (can.addressed_noise, can.cancel, can.priority, can.logprobs, can.drafts) == (True, True, True, True, False)


def test_greedy_tokens_and_logprobs_are_those_of_transformers(engine: Any, model: Any) -> None:
    async def main() -> Any:
        return await engine.submit(PROMPT, Sampling(temperature=0, max_tokens=40), seed=0)

    completion = asyncio.run(main())
    tokens, logprobs = greedy_by_transformers(model, PROMPT, 40)
    assert completion.token_ids == tokens
    assert completion.logprobs == pytest.approx(logprobs, abs=1e-5)
    assert completion.finish_reason is FinishReason.LENGTH


def test_a_stop_token_ends_a_completion_and_is_part_of_it(engine: Any, model: Any) -> None:
    async def main() -> Any:
        return await engine.submit(PROMPT, Sampling(temperature=0, max_tokens=40, stop_token_ids=(stop,)), seed=0)

    tokens, _ = greedy_by_transformers(model, PROMPT, 40)
    stop = tokens[20]
    completion = asyncio.run(main())
    assert completion.token_ids == tokens[: tokens.index(stop) + 1]
    assert completion.finish_reason is FinishReason.STOP


def test_the_context_ends_a_completion(engine: Any) -> None:
    async def main() -> Any:
        return await engine.submit([3] * (CONTEXT - 5), Sampling(max_tokens=200), seed=0)

    completion = asyncio.run(main())
    assert len(completion.token_ids) == 5
    assert completion.finish_reason is FinishReason.LENGTH


SAMPLINGS = [
    Sampling(max_tokens=24),
    Sampling(max_tokens=24, temperature=0.7),
    Sampling(max_tokens=24, temperature=1.5, top_k=9),
    Sampling(max_tokens=24, top_p=0.8),
    Sampling(max_tokens=24, temperature=0.8, top_k=20, top_p=0.9),
    Sampling(max_tokens=24, temperature=0),
]


def test_a_completion_is_a_pure_function_of_prompt_sampling_and_seed(engine: Any) -> None:
    """Alone, all together, in another order among strangers, and on further event loops: the same bits."""
    work = [([9, *range(i % 7), 11], SAMPLINGS[i % len(SAMPLINGS)], 1000 + i) for i in range(24)]

    async def alone() -> list[Any]:
        return [await engine.submit(*one) for one in work]

    async def together() -> list[Any]:
        strangers = [engine.submit([i], Sampling(max_tokens=40), i, priority=Priority(i % 2)) for i in range(8)]
        generations = {i: engine.submit(*work[i], priority=Priority(i % 2)) for i in reversed(range(len(work)))}
        strangers[0].cancel()
        return [await generations[i] for i in range(len(work))]

    results = [[facts(completion) for completion in asyncio.run(run())] for run in (alone, together, alone)]
    assert results[0] == results[1] == results[2]
    assert len({tokens for tokens, *_ in results[0]}) > len(work) // 2


def test_logprobs_are_of_the_processed_distribution(engine: Any, model: Any) -> None:
    """They are what the embedded engine computes for the same tokens."""
    import torch

    from obsspec_gym.agents.engine.embedded.sampler import process

    async def main() -> list[Any]:
        return [await engine.submit(PROMPT, sampling, seed=7) for sampling in SAMPLINGS]

    for sampling, completion in zip(SAMPLINGS, asyncio.run(main()), strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([[*PROMPT, *completion.token_ids]])).logits[0, len(PROMPT) - 1 : -1]
        logp = torch.log_softmax(process(logits, [sampling] * len(logits)), dim=-1)
        expected = logp[range(len(logp)), list(completion.token_ids)].tolist()
        assert completion.logprobs == pytest.approx(expected, abs=2e-5)


def test_tokens_are_known_before_the_end(engine: Any) -> None:
    async def main() -> None:
        generation = engine.submit(PROMPT, Sampling(max_tokens=400), seed=1)
        await until(lambda: len(generation.partial()) > 3)
        assert not generation.done()
        part = generation.partial()
        completion = await generation
        assert completion.token_ids[: len(part)] == part
        assert generation.partial() == completion.token_ids

    asyncio.run(main())


def test_a_cancelled_generation_frees_what_it_held(engine: Any) -> None:
    async def main() -> None:
        await until(lambda: idle(engine))
        generations = [engine.submit([*PROMPT, i], Sampling(max_tokens=400), seed=i) for i in range(40)]
        await until(lambda: engine.load().running == 32)  # the rest waits
        load = engine.load()
        assert load.waiting == 8
        assert load.cached_tokens > 0
        for generation in generations:
            generation.cancel()
        with pytest.raises(GenerationCancelled):
            await generations[0]
        await until(lambda: idle(engine))

    asyncio.run(main())


def test_committed_requests_overtake_speculative_ones(engine: Any) -> None:
    """In vLLM's queue; and a promoted one stands where committed ones do, with the completion it would have had."""

    async def main() -> None:
        ended: list[str] = []

        def submit(name: str, seed: int, priority: Priority, tokens: int) -> Any:
            generation = engine.submit([7, seed], Sampling(max_tokens=tokens), seed, priority=priority)
            generation.add_done_callback(lambda: ended.append(name))
            return generation

        expected = await engine.submit([7, 99], Sampling(max_tokens=4), 99)
        running = [submit("running", i, Priority.COMMITTED, 60) for i in range(32)]
        await until(lambda: engine.load().running == 32)
        waiting = [submit("speculative", 50 + i, Priority.SPECULATIVE, 4) for i in range(40)]
        promoted = submit("promoted", 99, Priority.SPECULATIVE, 4)
        await until(lambda: engine.load().waiting == 41)
        committed = submit("committed", 98, Priority.COMMITTED, 4)
        promoted.promote()
        completions = [await generation for generation in (*running, *waiting, promoted, committed)]
        order = [name for name in ended if name != "running"]
        assert set(order[:2]) == {"promoted", "committed"}
        assert facts(completions[-2]) == facts(expected)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("arguments", "options", "sentence"),
    [
        (([], Sampling(), 0), {}, "the prompt must have at least one token, got none"),
        (([1, VOCABULARY], Sampling(), 0), {}, rf"must be in \[0, {VOCABULARY}\), got {VOCABULARY}"),
        (([1.5], Sampling(), 0), {}, "token ids of the prompt must be integers"),
        (([1] * CONTEXT, Sampling(), 0), {}, f"shorter than the context of {CONTEXT} tokens, got {CONTEXT}"),
        (([1], Sampling(), -1), {}, r"the seed must be in \[0, 2\*\*63\), got -1"),
        (([1], Sampling(), 0), {"draft": [1]}, "verifies no drafts"),
        (([1], Sampling(temperature=0, top_k=5), 0), {}, "drops top_k and top_p at temperature 0"),
        (([1], Sampling(temperature=0.001), 0), {}, "no temperature between 0 and 0.01, got 0.001"),
    ],
)
def test_bad_requests_are_refused_in_one_sentence(
    engine: Any, arguments: tuple[Any, ...], options: dict[str, Any], sentence: str
) -> None:
    async def main() -> None:
        with pytest.raises(InvalidArgumentError, match=sentence):
            engine.submit(*arguments, **options)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"dtype": "float64"}, "dtype must be one of float32, bfloat16, float16, got 'float64'"),
        ({"own_drafts": "eagle"}, "own_drafts must be one of ngram, suffix or None, got 'eagle'"),
        ({"max_running": 0}, "max_running must be at least 1, got 0"),
        ({"max_batch_tokens": 8}, r"max_batch_tokens must be at least max_running \(64\)"),
        ({"context": CONTEXT + 1}, f"context must be in 2..{CONTEXT} tokens"),
        ({"kv_cache_bytes": 0}, "kv_cache_bytes must be positive, got 0"),
    ],
)
def test_bad_options_are_refused_before_anything_starts(
    model_path: Path, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=sentence):
        VLLMEngine(model_path, **options)


def test_what_keeps_vllm_from_starting_is_told(model_path: Path) -> None:
    async def main() -> None:
        with VLLMEngine(model_path, vllm_options={"no_such_option": 1}) as engine:
            generation = engine.submit(PROMPT, Sampling(), 0)
            with pytest.raises(EngineError, match="vLLM could not be started"):
                await generation
            with pytest.raises(EngineError, match="vLLM could not be started"):
                engine.submit(PROMPT, Sampling(), 0)
            with pytest.raises(EngineError, match="vLLM could not be started"):
                engine.update_weights()

    asyncio.run(main())


@pytest.mark.parametrize("ending", ["pass", "engine.close()"])
def test_a_program_ends_and_leaves_nothing(model_path: Path, ending: str) -> None:
    """Whether it forgets to close its engine or closes it, which is quiet."""
    script = textwrap.dedent(
        f"""
        import asyncio, multiprocessing
        from obsspec_gym.agents.engine.vllm import VLLMEngine
        from obsspec_gym.types import Sampling

        async def main(engine):
            generation = engine.submit([1], Sampling(max_tokens=400), 0)
            while not generation.partial():
                await asyncio.sleep(0.01)
            print([process.pid for process in multiprocessing.active_children()], flush=True)

        if __name__ == "__main__":
            engine = VLLMEngine({str(model_path)!r})
            asyncio.run(main(engine))
            {ending}
        """
    )
    path = model_path / "program.py"
    path.write_text(script)
    ended = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    [pid] = json.loads(ended.stdout.splitlines()[-1])
    assert not Path(f"/proc/{pid}").exists()
    if ending != "pass":
        assert "Traceback" not in ended.stderr
