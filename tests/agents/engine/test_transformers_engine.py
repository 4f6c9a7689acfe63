"""The engine as its users see it: asyncio in front, and the same completions from every driver."""

from __future__ import annotations

import asyncio
import gc
import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import tiny_models  # noqa: E402
from transformers import PreTrainedModel  # noqa: E402

from obsspec_gym.agents.engine.base import Engine  # noqa: E402
from obsspec_gym.agents.engine.transformers import TransformersEngine  # noqa: E402
from obsspec_gym.errors import ClosedError, EngineError, GenerationCancelled, InvalidArgumentError  # noqa: E402
from obsspec_gym.types import Priority, Sampling  # noqa: E402

V, CONTEXT = tiny_models.VOCABULARY, tiny_models.CONTEXT
DRIVERS = ["inline", "thread", "process"]
LONG = Sampling(max_tokens=190)


@pytest.fixture(scope="module")
def model():
    return tiny_models.qwen3()


async def until(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        await asyncio.sleep(0.005)


async def mixed_work(engine):
    """Prompts that share a prefix, committed and speculative, one promoted, one cancelled, one with a draft."""
    sampling = Sampling(max_tokens=30)
    generations = [
        engine.submit([4, 5, 6, *range(i)], sampling, seed=i, priority=Priority(i % 2), draft=[1, 2] if i == 3 else ())
        for i in range(6)
    ]
    generations[1].promote()
    generations[5].cancel()
    completions = [await generation for generation in generations[:5]]
    with pytest.raises(GenerationCancelled):
        await generations[5]
    again = await engine.submit([4, 5, 6], sampling, seed=0, draft=completions[0].token_ids)
    assert again.accepted_draft_tokens == 30
    assert again.token_ids == completions[0].token_ids
    await until(lambda: (engine.load().running, engine.load().waiting) == (0, 0))
    return [(c.token_ids, c.logprobs) for c in completions]


def processes_of_engines():
    """Children of this process that run an engine."""
    found = subprocess.run(
        ["ps", "-ww", "--ppid", str(os.getpid()), "-o", "args="], capture_output=True, text=True, check=False
    ).stdout
    return found.count("embedded.worker")


def test_every_driver_gives_the_same_completions(model):
    results = {}
    for driver in DRIVERS:
        with TransformersEngine(model, driver=driver) as engine:
            assert isinstance(engine, Engine)
            results[driver] = asyncio.run(mixed_work(engine))
            if driver == "process":
                assert processes_of_engines() == 1
                # A second event loop, the same process; and new weights.
                assert asyncio.run(mixed_work(engine)) == results[driver]
                assert asyncio.run(with_new_weights(engine)) == 1
    assert results["inline"] == results["thread"] == results["process"]
    assert processes_of_engines() == 0
    assert not [t for t in threading.enumerate() if t.name.startswith("obsspec-engine")]


async def with_new_weights(engine):
    """Updates while work is under way; returns the version of a completion."""
    speculative = engine.submit([1], LONG, seed=1, priority=Priority.SPECULATIVE)
    committed = engine.submit([2], LONG, seed=2)
    await asyncio.sleep(0.01)
    state = dict(tiny_models.qwen3(9).named_parameters())
    assert engine.update_weights(state) == 1
    with pytest.raises(GenerationCancelled):
        await speculative
    completion = await committed
    with TransformersEngine(tiny_models.qwen3(9), driver="inline") as fresh:
        assert (await fresh.submit([2], LONG, seed=2)).token_ids == completion.token_ids
    return completion.weights_version


@pytest.mark.parametrize("driver", ["inline", "thread"])
def test_new_weights(model, driver):
    with TransformersEngine(model, driver=driver) as engine:
        assert asyncio.run(with_new_weights(engine)) == engine.weights_version == 1


def test_weights_changed_in_place_count_from_the_next_update_on():
    async def main():
        model = tiny_models.qwen3(4)
        with TransformersEngine(model, driver="inline") as engine:
            before = await engine.submit([2], LONG, seed=2)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(1.5)
            during = await engine.submit([2], LONG, seed=2)
            assert engine.update_weights() == 1
            after = await engine.submit([2], LONG, seed=2)
        assert before.token_ids == during.token_ids != after.token_ids
        with TransformersEngine(model, driver="inline") as fresh:
            assert (await fresh.submit([2], LONG, seed=2)).token_ids == after.token_ids

    asyncio.run(main())


def test_a_directory_is_loaded_and_needs_weights_for_an_update(model, tmp_path):
    async def main():
        model.save_pretrained(tmp_path)
        with (
            TransformersEngine(tmp_path, driver="inline", dtype="float64") as loaded,
            TransformersEngine(model, driver="inline", dtype="float64") as given,
        ):
            same = [await engine.submit([2], LONG, seed=2) for engine in (loaded, given)]
            assert same[0].token_ids == same[1].token_ids
            with pytest.raises(InvalidArgumentError, match="made from a directory"):
                loaded.update_weights()
            assert loaded.update_weights(list(model.named_parameters())) == 1

    asyncio.run(main())
    with pytest.raises(InvalidArgumentError, match=r"expected a directory with a model \(config.json\)"):
        TransformersEngine(tmp_path / "missing")


def test_engines_are_loaded_by_many_threads_at_once(tmp_path):
    tiny_models.qwen3().save_pretrained(tmp_path)  # its embeddings are tied
    exchanged = [(torch.nn.init, "kaiming_uniform_"), (PreTrainedModel, "tie_weights"), (torch, "linspace")]
    before = [getattr(*where) for where in exchanged]

    def completion(_):
        async def first():
            with TransformersEngine(tmp_path, driver="inline") as engine:
                return (await engine.submit([2], Sampling(max_tokens=8), seed=2)).token_ids

        return asyncio.run(first())

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(completion, range(24)))) == 1
    assert [getattr(*where) for where in exchanged] == before


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (([], Sampling(), 0), "the prompt must have at least one token, got none"),
        (([1, V], Sampling(), 0), rf"token ids of the prompt must be in \[0, {V}\), got {V}"),
        (([1.5], Sampling(), 0), "token ids of the prompt must be integers"),
        (([-1], Sampling(), 0), r"token ids of the prompt must be in .*, got -1"),
        (([1] * CONTEXT, Sampling(), 0), f"shorter than the context of {CONTEXT} tokens, got {CONTEXT}"),
        (([1], Sampling(), -1), r"the seed must be in \[0, 2\*\*63\), got -1"),
        (([1], Sampling(max_tokens=150), 0), "can need 256 KV slots, and the engine has 128"),
    ],
)
def test_bad_requests_are_refused_in_one_sentence(model, arguments, sentence):
    async def main():
        with TransformersEngine(model, driver="inline", capacity_tokens=128) as engine:
            with pytest.raises(InvalidArgumentError, match=sentence):
                engine.submit(*arguments)
            with pytest.raises(InvalidArgumentError, match="token ids of the draft"):
                engine.submit([1], Sampling(max_tokens=9), 0, draft=[V])
            assert engine.load().waiting == 0

    asyncio.run(main())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"dtype": "bfloat16"}, "dtype must be one of float32, float64, got 'bfloat16'"),
        ({"driver": "fork"}, "driver must be one of inline, thread, process, got 'fork'"),
        ({"max_batch_tokens": 0}, "max_batch_tokens must be at least 1, got 0"),
        ({"driver": "thread", "step_seconds": 0.1}, "step_seconds is for the inline and process drivers"),
        ({"driver": "process", "device": "cuda"}, "runs on the CPU, got device='cuda'"),
    ],
)
def test_bad_settings_are_refused_in_one_sentence(model, arguments, sentence):
    with pytest.raises(InvalidArgumentError, match=sentence):
        TransformersEngine(model, **arguments)


@pytest.mark.parametrize("driver", ["inline", "thread"])
def test_cancelling_reaches_the_engine(model, driver):
    async def main():
        with TransformersEngine(model, driver=driver) as engine:
            generations = [engine.submit([i], LONG, seed=i) for i in range(4)]
            await until(lambda: engine.load().running == 4)
            for generation in generations:
                generation.cancel()
                generation.cancel()
            await until(lambda: engine.load().running == 0)
            assert engine.load().waiting == 0
            assert all(generation.cancelled() for generation in generations)

    asyncio.run(main())


@pytest.mark.parametrize("driver", ["inline", "thread"])
def test_closing_cancels_what_is_under_way_and_may_be_repeated(model, driver):
    async def main():
        engine = TransformersEngine(model, driver=driver)
        generation = engine.submit([1], LONG, seed=0)
        await asyncio.sleep(0.01)
        engine.close()
        engine.close()
        with pytest.raises(GenerationCancelled):
            await generation
        generation.cancel()
        for use in (lambda: engine.submit([1], LONG, seed=0), engine.update_weights):
            with pytest.raises(ClosedError):
                use()
        assert (engine.load().running, engine.load().waiting) == (0, 0)

    asyncio.run(main())


def test_nothing_starts_before_the_first_request(model):
    before = threading.active_count()
    for driver in DRIVERS:
        with TransformersEngine(model, driver=driver):
            assert threading.active_count() == before
            assert processes_of_engines() == 0


def test_an_engine_that_is_forgotten_stops(model):
    async def main():
        engine = TransformersEngine(model, driver="thread")
        await engine.submit([1], Sampling(max_tokens=1), seed=0)

    asyncio.run(main())
    gc.collect()
    assert not [t for t in threading.enumerate() if t.name.startswith("obsspec-engine")]


def test_a_step_that_fails_fails_its_generations_and_the_engine_goes_on(model, monkeypatch):
    async def main():
        with TransformersEngine(model, driver="thread") as engine:
            core = engine._driver._core
            forward = core._model.forward
            monkeypatch.setattr(core._model, "forward", lambda batch: 1 / 0)
            with pytest.raises(EngineError, match="ZeroDivisionError"):
                await engine.submit([1], LONG, seed=0)
            monkeypatch.setattr(core._model, "forward", forward)
            assert len((await engine.submit([1], Sampling(max_tokens=3), seed=0)).token_ids) == 3

    asyncio.run(main())


def test_an_update_that_fails_says_so_and_the_engine_goes_on(model, monkeypatch):
    async def main():
        with TransformersEngine(model, driver="thread") as engine:
            completion = await engine.submit([1], Sampling(max_tokens=3), seed=0)
            monkeypatch.setattr(engine._weights, "load", lambda state: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                engine.update_weights()
            assert engine.weights_version == 0
            assert (await engine.submit([1], Sampling(max_tokens=3), seed=0)).token_ids == completion.token_ids

    asyncio.run(main())


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer."""

    def __init__(self):
        super().__init__()
        self.now = 0.0
        select_real = self._selector.select

        def select_virtual(timeout=None):
            self.now += timeout or 0.0
            return select_real(0)

        self._selector.select = select_virtual

    def time(self):
        return self.now


def test_inline_steps_take_the_loops_time_and_other_things_happen_in_between(model):
    async def main():
        loop = asyncio.get_running_loop()
        engine = TransformersEngine(model, driver="inline", step_seconds=0.5)
        ticks = []

        async def other():
            while True:
                ticks.append(loop.time())
                await asyncio.sleep(0.21)

        task = asyncio.create_task(other())
        first = engine.submit([1], Sampling(max_tokens=4), seed=0)
        await asyncio.sleep(0.6)
        second = engine.submit([2], Sampling(max_tokens=4), seed=0)
        await first
        times = [loop.time()]
        await second
        times.append(loop.time())
        task.cancel()
        engine.close()
        return times, len(ticks)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        times, ticks = runner.run(main())
    # Four steps of half a second each; the second request joins at the first boundary after it came, at 1.0.
    assert times == pytest.approx([2.0, 3.0])
    assert ticks == 15


def test_the_death_of_the_engines_process_is_told(model):
    async def main():
        with TransformersEngine(model, driver="process") as engine:
            generation = engine.submit([1], Sampling(max_tokens=1), seed=0)
            await generation
            generation = engine.submit([1], LONG, seed=0)
            engine._driver._process.send_signal(signal.SIGKILL)
            with pytest.raises(EngineError, match=r"ended unexpectedly \(exit status -9\)"):
                await generation
            with pytest.raises(EngineError, match="ended unexpectedly"):
                engine.submit([1], LONG, seed=0)
            assert (engine.load().running, engine.load().waiting) == (0, 0)

    asyncio.run(main())
    assert processes_of_engines() == 0


def test_the_engines_process_ends_with_its_parent(tmp_path):
    program = textwrap.dedent(
        """
        import asyncio, os
        import torch
        from obsspec_gym.agents.engine.embedded.inbox import Inbox
        from obsspec_gym.agents.engine.embedded.process import ProcessDriver, Terms
        from obsspec_gym.agents.engine.embedded.requests import Submit
        from obsspec_gym.agents.engine.embedded.scheduler import Limits
        from obsspec_gym.agents.engine.embedded.shape import ModelShape
        from obsspec_gym.types import Priority, Sampling

        async def main():
            shape = ModelShape(16, 8, 1, 2, 1, 4, 8, 4096, 1e-6, True, False, False, True)
            inbox = Inbox()
            driver = ProcessDriver(shape, torch.float32, Limits(), inbox, Terms())
            first = asyncio.get_running_loop().create_future()
            inbox.expect(0, first)
            driver.send(Submit(0, (1,), Sampling(max_tokens=1), 0, Priority.COMMITTED))
            await first
            print(driver._process.pid, flush=True)
            driver.send(Submit(1, (1,), Sampling(max_tokens=4000), 0, Priority.COMMITTED))
            os.kill(os.getpid(), 9)

        asyncio.run(main())
        """
    )
    parent = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=False)
    assert parent.returncode == -9
    try:
        child = os.pidfd_open(int(parent.stdout))
    except ProcessLookupError:
        return  # gone already
    ended, _, _ = select.select([child], [], [], 30)
    os.close(child)
    assert ended
