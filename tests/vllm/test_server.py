"""Real vLLM servers behind ``ServerEngine``: the same tokens with speculation, aborts, a server that dies."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed here: make test-vllm")

from obsspec_gym.agents.engine.base import Capabilities, EngineLoad
from obsspec_gym.agents.engine.server import ServerEngine, WeightReload
from obsspec_gym.errors import GenerationCancelled
from obsspec_gym.speculation.comparison import compare
from obsspec_gym.types import Hint, Priority, Sampling
from tests.vllm.parts import (
    World,
    greedy_by_transformers,
    logprob_difference,
    saved,
    tiny_model,
    until,
)

pytestmark = pytest.mark.timeout(900)  # two or three servers start on whatever else the machine has to do

CONTEXT = 4096
OPTIONS = [
    *(
        "--dtype",
        "float32",
        "--enforce-eager",
        "--no-enable-chunked-prefill",
        "--block-size",
        "32",
        "--kv-cache-memory-bytes",
        str(64 << 20),
    ),
    *(
        "--max-model-len",
        str(CONTEXT),
        "--max-num-batched-tokens",
        str(CONTEXT),
        "--max-num-seqs",
        "32",
        "--skip-tokenizer-init",
        "--generation-config",
        "vllm",
    ),
    *("--logprobs-mode", "processed_logprobs", "--scheduling-policy", "priority", "--served-model-name", "tiny"),
    *("--disable-uvicorn-access-log", "--host", "127.0.0.1"),
]
ENVIRONMENT = {
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
LONG, ENDLESS = Sampling(max_tokens=400), Sampling(max_tokens=4000)


@dataclass(frozen=True)
class Served:
    """A server of ours."""

    process: subprocess.Popen[bytes]
    url: str

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=20) as answer:
            text = answer.read().decode()
        found = re.findall(rf"^vllm:{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
        assert found, f"there is no metric {name}"
        return sum(map(float, found))

    def ready(self) -> bool:
        assert self.process.poll() is None, "the server ended while it was starting"
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False


@contextmanager
def serving(model: Path, count: int) -> Iterator[list[Served]]:
    """That many servers of a model, started side by side."""
    with ExitStack() as stack:
        servers = []
        for _ in range(count):
            with socket.create_server(("127.0.0.1", 0)) as taken:
                port = taken.getsockname()[1]
            command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
            process = subprocess.Popen(
                [*command, *OPTIONS, "--port", str(port)],
                env={**os.environ, **ENVIRONMENT},
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # it has a child that runs the model; both are ended together
            )
            stack.callback(_end, process)
            servers.append(Served(process, f"http://127.0.0.1:{port}"))
        deadline = time.monotonic() + 800
        while not all(server.ready() for server in servers):
            assert time.monotonic() < deadline, "the servers did not start"
            time.sleep(0.5)
        yield servers


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        pass
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Served]]:
    """Two servers of the tiny model, which may write more."""
    with serving(saved(tiny_model(context=CONTEXT), tmp_path_factory.mktemp("tiny")), 2) as servers:
        yield servers


@pytest.fixture(scope="module")
def engine(servers: list[Served]) -> Iterator[ServerEngine]:
    """Both as one engine."""
    with ServerEngine([server.url for server in servers]) as engine:
        yield engine


def test_the_probe_finds_what_these_servers_can(engine: ServerEngine) -> None:
    assert engine.capabilities == Capabilities(addressed_noise=True, cancel=True, priority=True, logprobs=True)


def test_greedy_tokens_and_logprobs_are_those_of_transformers(engine: ServerEngine, model: Any) -> None:
    async def main() -> Any:
        return await engine.submit([4, 5, 6], Sampling(temperature=0, max_tokens=40), seed=0)

    completion = asyncio.run(main())
    tokens, logprobs = greedy_by_transformers(model, [4, 5, 6], 40)
    assert completion.token_ids == tokens
    assert completion.logprobs == pytest.approx(logprobs, abs=1e-5)


@pytest.mark.parametrize(
    "sampling", [Sampling(max_tokens=10), Sampling(max_tokens=10, temperature=0.8, top_k=50, top_p=0.9)], ids=str
)
def test_500_turns_over_two_servers_are_the_same_with_speculation(
    servers: list[Served], engine: ServerEngine, sampling: Sampling
) -> None:
    world = World(seed=1)
    before = [server.metric("generation_tokens_total") for server in servers]
    sequential = world.play(engine, sampling, turns=500, environments=16, speculate=False)
    speculative = world.play(engine, sampling, turns=500, environments=16, speculate=True)
    comparison = compare(sequential.trajectories, speculative.trajectories)
    assert comparison.identical, comparison.summary()
    assert comparison.turns >= 500
    assert logprob_difference(sequential, speculative) <= 1e-5
    assert sum(turn.hit for turn in speculative.turns) > 50
    served = [server.metric("generation_tokens_total") - old for server, old in zip(servers, before, strict=True)]
    assert min(served) > 0.25 * sum(served), "both work"
    assert sum(server.metric("prefix_cache_hits_total") for server in servers) > 0


def test_what_is_cancelled_is_aborted_by_the_server(servers: list[Served]) -> None:
    """Its own counters say so: nothing runs, nothing waits, no memory is held."""
    server = servers[0]

    def busy() -> tuple[float, float, float]:
        return (
            server.metric("num_requests_running"),
            server.metric("num_requests_waiting"),
            server.metric("kv_cache_usage_perc"),
        )

    async def settled(engine: ServerEngine) -> None:
        deadline = time.monotonic() + 60
        while busy() != (0, 0, 0):  # of the server's last step: what is aborted after it shows in the next one
            assert time.monotonic() < deadline, busy()
            await engine.submit([5], Sampling(max_tokens=2), 0)

    async def main(engine: ServerEngine) -> None:
        assert engine.capabilities.cancel  # asks the server
        await settled(engine)  # others may have left something
        before = server.metric("generation_tokens_total")
        generations = [
            engine.submit([7, i], ENDLESS, seed=i, priority=Priority.SPECULATIVE, hint=Hint(i)) for i in range(24)
        ]
        await until(lambda: any(len(generation.partial()) > 2 for generation in generations))
        for generation in generations:
            generation.cancel()
        with pytest.raises(GenerationCancelled):
            await generations[0]
        await settled(engine)
        # On a busy machine a server computes far ahead of what it has sent, so this is the share that it was spared.
        assert 0 < server.metric("generation_tokens_total") - before < len(generations) * ENDLESS.max_tokens / 2
        assert engine.load() == EngineLoad()

    with ServerEngine(server.url) as engine:
        asyncio.run(main(engine))


@pytest.fixture(scope="module")
def spare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Path]]:
    """A third server of the same weights, and the directory that it reads them from."""
    directory = saved(tiny_model(context=CONTEXT), tmp_path_factory.mktemp("spare"))
    with serving(directory, 1) as [server]:
        yield server, directory


def test_after_each_reload_greedy_output_is_that_of_transformers(spare: tuple[Served, Path]) -> None:
    server, directory = spare
    with ServerEngine(server.url, reload=WeightReload.vllm(directory)) as engine:
        for version, model in enumerate([tiny_model(7), tiny_model(8), tiny_model()], 1):
            assert engine.update_weights(model.state_dict()) == version
            check_greedy(engine, model)


def test_a_server_that_is_killed_in_mid_generation_is_replaced(
    spare: tuple[Served, Path], servers: list[Served]
) -> None:
    killed, sound = spare[0], servers[0]

    async def main(both: ServerEngine, alone: ServerEngine) -> None:
        work = [([9, i], LONG, 100 + i) for i in range(8)]
        expected = [await generation for generation in [alone.submit(*each) for each in work]]
        generations = [both.submit(*each, hint=Hint(each[2])) for each in work]
        await until(lambda: killed.metric("num_requests_running") > 0)
        await until(lambda: all(len(generation.partial()) > 5 for generation in generations))
        os.killpg(killed.process.pid, signal.SIGKILL)
        for generation, other in zip(generations, expected, strict=True):
            completion = await generation
            assert completion.token_ids == other.token_ids
            assert completion.logprobs == pytest.approx(other.logprobs, abs=1e-5)
        assert both.load() == EngineLoad()

    with ServerEngine([sound.url, killed.url], seed=3) as both, ServerEngine(sound.url) as alone:
        assert both.capabilities.addressed_noise
        asyncio.run(asyncio.wait_for(main(both, alone), 600))


def check_greedy(engine: ServerEngine, model: Any) -> None:
    """Twice the same prompt, of more than two blocks: what is remembered of it must be of these weights too."""
    prompt = list(range(10, 90))

    async def main() -> list[Any]:
        return [await engine.submit(prompt, Sampling(temperature=0, max_tokens=24), 0) for _ in range(2)]

    tokens, logprobs = greedy_by_transformers(model, prompt, 24)
    for completion in asyncio.run(main()):
        assert completion.token_ids == tokens
        assert completion.logprobs == pytest.approx(logprobs, abs=1e-5)
