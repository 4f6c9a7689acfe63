"""Servers as an engine: real HTTP on loopback, and whatever can go wrong with it."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace

import pytest
from completion_server import CompletionServer, Fault

pytest.importorskip("httpx2")
pytest.importorskip("tenacity")

from obsspec_gym.agents.engine.base import Capabilities, Engine, EngineLoad
from obsspec_gym.agents.engine.server import Imbalance, ServerEngine, WeightReload
from obsspec_gym.agents.engine.simulated import SimulatedEngine
from obsspec_gym.agents.fakes import ScriptedWorldModel
from obsspec_gym.agents.token_policy import TokenPolicy
from obsspec_gym.errors import ClosedError, EngineError, GenerationCancelled, InvalidArgumentError
from obsspec_gym.seeding import derive_seed
from obsspec_gym.speculation.collector import collect_async
from obsspec_gym.speculation.comparison import compare
from obsspec_gym.speculation.selector import FixedSelector, Off
from obsspec_gym.speculation.simulation import SimulatedSlot, oracle_of
from obsspec_gym.speculation.slot import Episode
from obsspec_gym.types import EpisodeId, FinishReason, Hint, Outcome, Priority, Sampling

ALL = Capabilities(addressed_noise=True, cancel=True, priority=True, logprobs=True)
SAMPLING = Sampling(max_tokens=12)
LONG = Sampling(max_tokens=200)


def engine_of(*servers, **options):
    return ServerEngine([server.url for server in servers], **{"timeout": 20.0, **options})


def long_completions():
    return SimulatedEngine(step_seconds=lambda batch: 0.0, length=lambda prompt, seed: 200)


async def sampled(prompt, seed, sampling=SAMPLING, engine=None):
    """What a server's engine samples."""
    engine = engine or SimulatedEngine(step_seconds=lambda batch: 0.0)
    return (await engine.submit(prompt, sampling, seed)).token_ids


def expected(*arguments):
    return asyncio.run(sampled(*arguments))


async def long(prompt, seed):
    return await sampled(prompt, seed, LONG, long_completions())


def waiting(after=20):
    """A server that stops in the middle until it is released."""
    return CompletionServer(engine=long_completions(), fault=lambda number, body: Fault("wait", after))


async def until(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        await asyncio.sleep(0.002)


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "obsspec-servers"]


def test_completions_are_the_servers_and_so_is_what_they_can_do():
    async def main(engine):
        generations = [engine.submit([5, i], SAMPLING, seed=i) for i in range(20)]
        return [await generation for generation in generations]

    with CompletionServer() as server, engine_of(server) as engine:
        assert not threads()
        assert engine.capabilities == ALL
        assert isinstance(engine, Engine)
        for _ in range(3):  # each on an event loop of its own
            completions = asyncio.run(main(engine))
            assert [c.token_ids for c in completions] == [expected([5, i], i) for i in range(20)]
        assert len(threads()) == 1
        assert completions[0].logprobs == (-1.0,) * len(completions[0].token_ids)
        assert completions[0].finish_reason is FinishReason.LENGTH
        assert completions[0].weights_version == engine.weights_version == 0
        assert engine.load() == EngineLoad()
        assert {body["model"] for body in server.bodies} == {"tiny"}
    assert not threads()


@pytest.mark.parametrize(
    ("server", "lacks"),
    [
        (CompletionServer(seeds=False), {"addressed_noise": False}),
        (CompletionServer(wobble=0.01), {"addressed_noise": False}),
        (CompletionServer(processed=False), {"logprobs": False}),
        (CompletionServer(owner="somebody", priority=False), {"cancel": False}),
        (CompletionServer(priority=False), {}),
    ],
)
def test_what_a_server_lacks_is_found_out(server, lacks):
    with server, engine_of(server) as engine:
        assert engine.capabilities == replace(ALL, **lacks)


def test_a_server_that_does_not_schedule_by_priority_is_not_sent_any():
    async def main(engine):
        await engine.submit([1], SAMPLING, seed=1, priority=Priority.SPECULATIVE)

    for priority, sent in ((True, 1), (False, None)):
        with CompletionServer(priority=priority) as server, engine_of(server) as engine:
            asyncio.run(main(engine))
            assert server.bodies[0].get("priority") == sent


def test_capabilities_may_be_stated_and_then_nothing_is_asked():
    stated = Capabilities(addressed_noise=False, cancel=True, priority=False, logprobs=False)
    engine = ServerEngine("http://127.0.0.1:9", model="m", context_length=10, capabilities=stated)
    assert engine.capabilities == replace(stated, priority=True)
    engine.close()
    with CompletionServer(seeds=False) as server, engine_of(server, capabilities=ALL) as engine:
        assert engine.capabilities == ALL
        assert not server.bodies


def test_servers_that_cannot_serve_together_or_at_all_are_refused_by_name():
    with CompletionServer(model="a") as a, CompletionServer(model="b") as b:
        with engine_of(a, b) as engine, pytest.raises(InvalidArgumentError, match="different models: a, b"):
            _ = engine.capabilities
        with engine_of(a, model="c") as engine, pytest.raises(InvalidArgumentError, match=r"\['a'\], not 'c'"):
            _ = engine.capabilities
    with (
        CompletionServer(token_ids=False) as server,
        engine_of(server) as engine,
        pytest.raises(EngineError, match=f"{server.url} .*no token ids"),
    ):
        _ = engine.capabilities
    other = CompletionServer(engine=SimulatedEngine(vocabulary=999))
    with CompletionServer() as one, other, engine_of(one, other) as both:
        assert not both.capabilities.addressed_noise, "the same seed, other tokens"
    with ServerEngine("http://127.0.0.1:9") as engine:
        for _ in range(2):  # a failure is not remembered
            with pytest.raises(EngineError, match=r"127\.0\.0\.1:9: ConnectError"):
                _ = engine.capabilities


@pytest.mark.parametrize(
    "arguments",
    [
        {"urls": []},
        {"urls": ["http://a", "http://a"]},
        {"urls": "a"},
        {"max_running": 0},
        {"attempts": 0},
        {"timeout": 0.0},
        {"connect_timeout": float("nan")},
        {"context_length": 0},
        {"capabilities": Capabilities(drafts=True)},
    ],
)
def test_bad_arguments_are_refused_before_anything_is_started(arguments):
    with pytest.raises(InvalidArgumentError):
        ServerEngine(**{"urls": "http://127.0.0.1:9", **arguments})
    assert not threads()


def test_bad_requests_are_refused_before_anything_is_sent():
    with CompletionServer(context=20) as server, engine_of(server) as engine:

        def refused(prompt, sampling=SAMPLING, seed=0, **more):
            with pytest.raises(InvalidArgumentError):
                engine.submit(prompt, sampling, seed, **more)

        async def main():
            refused([])
            refused([-1])
            refused(["a"])
            refused([1] * 20)
            refused([1], seed=-1)
            refused([1], seed=2**63)
            refused([1], draft=[1, 2])
            refused([1], Sampling(temperature=0.005))
            refused([1], Sampling(temperature=0.0, top_k=5))
            refused([1], Sampling(temperature=0.0, top_p=0.5))
            return await engine.submit([1] * 15, Sampling(max_tokens=12), seed=3)

        completion = asyncio.run(main())
        assert len(server.bodies) == 1
        assert server.bodies[0]["max_tokens"] == 5, "what the context leaves room for"
        assert len(completion.token_ids) <= 5


def test_a_generation_is_kept_while_it_is_unfinished_and_its_end_reaches_the_server():
    async def main(server, engine):
        kept = engine.submit([1], LONG, seed=1)
        dropped = engine.submit([2], LONG, seed=2, priority=Priority.SPECULATIVE)
        await until(lambda: len(kept.partial()) == len(dropped.partial()) == 20)
        assert engine.load() == EngineLoad(running=2, speculative=1, cached_tokens=42)
        assert server.active == 2
        dropped.cancel()
        await until(lambda: (server.aborted, server.active) == (1, 1))
        assert dropped.partial() == (await long([2], 2))[:20]
        whole = await long([1], 1)
        assert not kept.done()
        assert kept.partial() == whole[:20]
        server.release()
        assert (await kept).token_ids == whole
        with pytest.raises(GenerationCancelled):
            await dropped
        await until(lambda: engine.load() == EngineLoad() and server.active == 0)
        assert server.aborted == 1

    with waiting() as server, engine_of(server) as engine:
        asyncio.run(asyncio.wait_for(main(server, engine), 60))


FAULTS = [Fault(kind, after) for kind in ("drop", "end", "garbage", "error") for after in (0, 3)]


@pytest.mark.parametrize("fault", [*FAULTS, Fault("status", status=503), Fault("silent", 3)], ids=str)
def test_a_server_lost_in_mid_generation_costs_time_only(fault):
    """The other server gives the same tokens, and nothing of the first's is among them."""

    def once(number, body):
        return fault if number == 0 else None

    async def main(engine):
        generations = [engine.submit([7, i], LONG, seed=i, hint=Hint(i)) for i in range(6)]
        return [await generation for generation in generations]

    with ExitStack() as stack:
        servers = [stack.enter_context(CompletionServer(engine=long_completions(), fault=once)) for _ in range(2)]
        engine = stack.enter_context(engine_of(*servers, timeout=1.0 if fault.kind == "silent" else 20.0))
        completions = asyncio.run(asyncio.wait_for(main(engine), 60))
        assert [c.token_ids for c in completions] == [expected([7, i], i, LONG, long_completions()) for i in range(6)]
        assert all(len(c.logprobs) == 200 for c in completions)
        assert sum(len(server.bodies) for server in servers) == 8
        assert engine.load() == EngineLoad()


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (Fault("drop", 3), "RemoteProtocolError|ReadError"),
        (Fault("end", 3), "after 3 tokens, before the completion was finished"),
        (Fault("garbage", 3), "no JSON"),
        (Fault("error", 3), "the engine died"),
        (Fault("status", status=500), "status 500: out of order"),
        (Fault("silent", 3), "ReadTimeout"),
    ],
    ids=str,
)
def test_what_stays_broken_ends_with_a_reason_after_a_bounded_number_of_attempts(fault, reason):
    async def main(engine):
        await engine.submit([1], LONG, seed=1)

    broken = CompletionServer(engine=long_completions(), fault=lambda number, body: fault)
    timeout = 0.5 if fault.kind == "silent" else 20.0
    with broken as server, engine_of(server, attempts=3, timeout=timeout) as engine:
        with pytest.raises(EngineError, match=f"{server.url}.*({reason})"):
            asyncio.run(asyncio.wait_for(main(engine), 60))
        assert len(server.bodies) == 3
        assert engine.load() == EngineLoad()


def test_a_request_at_fault_is_not_sent_again():
    async def main(engine):
        await engine.submit([1], SAMPLING, seed=1)

    with (
        CompletionServer(fault=lambda number, body: Fault("status", status=404)) as server,
        engine_of(server) as engine,
    ):
        with pytest.raises(EngineError, match="status 404: out of order 404"):
            asyncio.run(main(engine))
        assert len(server.bodies) == 1


def test_a_server_that_ignores_stop_tokens_is_found_out():
    tokens = expected([1], 1, LONG, long_completions())

    async def main(engine):
        return await engine.submit([1], replace(LONG, stop_token_ids=(tokens[4],)), seed=1)

    with (
        CompletionServer(engine=long_completions(), stops=False) as server,
        engine_of(server) as engine,
        pytest.raises(EngineError, match="went on after a stop token"),
    ):
        asyncio.run(main(engine))


def test_a_killed_server_is_left_out_while_another_one_serves():
    async def main(engine, one, other):
        generations = [engine.submit([3, i], LONG, seed=i, hint=Hint(i)) for i in range(12)]
        await until(lambda: one.active and other.active and all(len(g.partial()) == 20 for g in generations))
        one.kill()
        other.release()
        completions = [await generation for generation in generations]
        assert [c.token_ids for c in completions] == [await long([3, i], i) for i in range(12)]
        before = len(one.bodies)
        await asyncio.gather(*[engine.submit([4, i], SAMPLING, seed=i, hint=Hint(i)) for i in range(12)])
        assert len(one.bodies) == before

    with waiting() as one, waiting() as other, engine_of(one, other) as engine:
        asyncio.run(asyncio.wait_for(main(engine, one, other), 60))


def test_conversations_stay_and_spread():
    async def main(engine):
        for turn in range(4):
            await asyncio.gather(*[engine.submit([9, i], SAMPLING, seed=turn, hint=Hint(i, turn)) for i in range(16)])

    with ExitStack() as stack:
        servers = [stack.enter_context(CompletionServer()) for _ in range(3)]
        asyncio.run(main(stack.enter_context(engine_of(*servers, seed=1))))
        homes = [{body["prompt"][1] for body in server.bodies} for server in servers]
        assert sum(len(home) for home in homes) == 16, "each conversation has one server"
        counts = Counter(body["prompt"][1] for server in servers for body in server.bodies)
        assert counts == Counter(dict.fromkeys(range(16), 4))
        assert min(len(home) for home in homes) >= 4


def test_a_crowded_server_gives_conversations_away():
    async def main(engine, servers):
        first = [engine.submit([1], LONG, seed=i, hint=Hint("a", i)) for i in range(9)]
        await until(lambda: sum(server.active for server in servers) == 9)
        counts = sorted(server.active for server in servers)
        for generation in first:
            generation.cancel()
        return counts

    with waiting() as one, waiting() as other, engine_of(one, other, imbalance=Imbalance(2, 1.5)) as engine:
        assert asyncio.run(main(engine, [one, other])) == [3, 6]


def test_committed_requests_go_first_and_so_does_one_that_is_promoted():
    async def main(engine, server):
        first = engine.submit([1], LONG, seed=1)
        await until(lambda: len(first.partial()) == 20)
        speculative = [engine.submit([i], LONG, seed=i, priority=Priority.SPECULATIVE) for i in (2, 3, 4)]
        committed = engine.submit([5], LONG, seed=5)
        speculative[2].promote()
        await until(lambda: engine.load().speculative == 2)
        assert (engine.load().running, engine.load().waiting) == (1, 4)
        speculative[0].cancel()
        server.release()
        for generation in (first, *speculative[1:], committed):
            await generation
        return [body["prompt"][0] for body in server.bodies]

    with waiting() as server, engine_of(server, max_running=1) as engine:
        assert asyncio.run(asyncio.wait_for(main(engine, server), 60)) == [1, 4, 5, 3]


def test_close_ends_what_is_under_way_and_leaves_nothing():
    async def main(engine, server):
        generations = [engine.submit([i], LONG, seed=i) for i in range(1, 5)]
        await until(lambda: server.active == 4)
        late = engine.submit([9], LONG, seed=9)
        engine.close()
        engine.close()
        for generation in (*generations, late):
            with pytest.raises(GenerationCancelled):
                await generation
        with pytest.raises(ClosedError):
            engine.submit([1], LONG, seed=1)
        with pytest.raises(ClosedError):
            engine.update_weights()
        await until(lambda: server.active == 0)

    with waiting() as server:
        asyncio.run(asyncio.wait_for(main(engine_of(server), server), 60))
        assert not threads()


def test_an_engine_that_is_forgotten_ends_by_itself():
    with CompletionServer() as server:
        assert engine_of(server).capabilities == ALL
        gc.collect()
        assert not threads()


def test_an_owner_whose_event_loop_is_gone_hurts_nobody():
    async def leave(engine, server):
        engine.submit([1], LONG, seed=1)
        await until(lambda: server.active == 1)

    async def main(engine):
        return (await engine.submit([2], SAMPLING, seed=2)).token_ids

    with waiting() as server, engine_of(server) as engine:
        asyncio.run(leave(engine, server))
        server.release()
        assert asyncio.run(main(engine)) == expected([2], 2, SAMPLING, long_completions())
        asyncio.run(until(lambda: engine.load() == EngineLoad()))


def test_weights_are_refused_unless_it_is_said_how_servers_take_them():
    with ServerEngine("http://127.0.0.1:9") as engine:
        with pytest.raises(InvalidArgumentError, match=r"weights of their own.*reload="):
            engine.update_weights({})
        assert not threads()


def test_new_weights_reach_every_server_and_nothing_old_is_delivered(tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    async def main(engine, servers):
        committed = engine.submit([1], LONG, seed=1)
        speculative = engine.submit([2], LONG, seed=2, priority=Priority.SPECULATIVE)
        await until(lambda: len(committed.partial()) == len(speculative.partial()) == 20)
        tensor = torch.ones(2, 2)
        assert engine.update_weights({"w": tensor.t(), "tied": tensor}) == engine.weights_version == 1
        with pytest.raises(GenerationCancelled):
            await speculative
        completion = await committed
        assert completion.weights_version == 1
        assert completion.token_ids == await long([1], 1)
        assert engine.update_weights() == 2

    posts = [
        ("/pause?mode=abort", None),
        ("/collective_rpc", {"method": "reload_weights"}),
        ("/reset_prefix_cache", None),
        ("/resume", None),
    ]
    seen = []

    def first_ones_wait(number, body):
        seen.append(body)
        return Fault("wait", 20) if len(seen) <= 2 else None

    servers = [CompletionServer(engine=long_completions(), fault=first_ones_wait) for _ in range(2)]
    with servers[0], servers[1], engine_of(*servers, reload=WeightReload.vllm(tmp_path)) as engine:
        asyncio.run(asyncio.wait_for(main(engine, servers), 60))
        assert [server.posts for server in servers] == [posts * 2] * 2
        assert set(load_file(tmp_path / "model.safetensors")) == {"w", "tied"}


def test_while_servers_may_have_different_weights_nothing_is_generated(tmp_path):
    async def main(engine):
        return await engine.submit([1], SAMPLING, seed=1)

    refusing = CompletionServer(refused={"/collective_rpc"})
    reload = WeightReload.vllm(tmp_path)
    with CompletionServer() as one, refusing as other, engine_of(one, other, reload=reload) as engine:
        with pytest.raises(EngineError, match=f"{other.url}/collective_rpc .*status 500"):
            engine.update_weights()
        assert engine.weights_version == 0
        assert other.posts[-1][0] == "/resume", "it is not left paused"
        with pytest.raises(EngineError, match=r"an update of the servers' weights failed: .*status 500"):
            asyncio.run(main(engine))
        other.refused.clear()
        assert engine.update_weights() == 1
        assert asyncio.run(main(engine)).weights_version == 1


def world(answers):
    def outcome(episode, actions):
        name = derive_seed("outcome", episode.task_id, *[token for action in actions for token in action])
        return Outcome(f"answer {name % answers}", ends=len(actions) >= 8 or name % 23 == 0)

    return outcome


async def rollouts(engine, model, selector, episodes):
    outcome, sampling = world(3), Sampling(max_tokens=8)
    slots = [SimulatedSlot(outcome, lambda episode, turn: 0.001 * (1 + turn % 4)) for _ in range(8)]
    plan = [Episode(EpisodeId(f"task {i // 2}", i % 2)) for i in range(episodes)]
    return await collect_async(slots, plan, TokenPolicy(engine, sampling), model, selector, run_seed=1)


def predictions():
    oracle, fakes = oracle_of(world(3)), ScriptedWorldModel
    return fakes.mixed(
        [fakes.right(oracle), fakes.right(oracle), fakes.among(oracle, rank=1), fakes.wrong(oracle)], seed=1
    )


def test_500_turns_over_two_servers_are_the_same_with_speculation():
    with ExitStack() as stack:
        servers = [stack.enter_context(CompletionServer(together=3)) for _ in range(2)]
        engine = stack.enter_context(engine_of(*servers))
        sequential = asyncio.run(rollouts(engine, None, Off(), 80))
        speculative = asyncio.run(rollouts(engine, predictions(), FixedSelector(2, 2), 80))
        comparison = compare(sequential.trajectories, speculative.trajectories)
        assert comparison.identical, comparison.summary()
        assert comparison.turns >= 500
        assert any(turn.hit for turn in speculative.turns)
        assert any(turn.generation and turn.hit and turn.generation.end > turn.committed for turn in speculative.turns)
        assert engine.load() == EngineLoad()
        assert all(server.bodies for server in servers)


def test_rollouts_are_the_same_while_servers_fail():
    def faulty(number, body):
        return (
            Fault(("drop", "end", "garbage", "error", "status")[number % 5], number % 4) if number % 11 == 3 else None
        )

    with ExitStack() as stack:
        sound = stack.enter_context(CompletionServer())
        broken = [stack.enter_context(CompletionServer(fault=faulty)) for _ in range(2)]
        sequential = asyncio.run(rollouts(stack.enter_context(engine_of(sound)), None, Off(), 12))
        engine = stack.enter_context(engine_of(*broken, attempts=12))
        speculative = asyncio.run(rollouts(engine, predictions(), FixedSelector(2, 2), 12))
        assert compare(sequential.trajectories, speculative.trajectories).identical
        assert sum(len(server.bodies) for server in broken) > 60


def test_without_seeds_the_noise_is_not_addressed_and_rollouts_go_on():
    with CompletionServer(seeds=False) as server, engine_of(server) as engine:
        assert not TokenPolicy(engine, SAMPLING).addressed_noise
        collection = asyncio.run(rollouts(engine, predictions(), FixedSelector(1, 1), 8))
        assert all(trajectory.steps and not trajectory.truncated for trajectory in collection.trajectories)


def test_the_reason_of_a_lost_server_is_that_of_the_truncated_episode():
    server = CompletionServer(fault=lambda number, body: Fault("drop", 2) if number >= 20 else None)
    with server, engine_of(server, attempts=2) as engine:
        collection = asyncio.run(asyncio.wait_for(rollouts(engine, None, Off(), 16), 60))
    lost = [trajectory for trajectory in collection.trajectories if trajectory.truncated]
    assert lost
    assert all(f"policy: ServerLost: {server.url}" in trajectory.reason for trajectory in lost)
    assert len(collection.trajectories) == 16


def test_a_real_model_behind_http_gives_the_same_tokens_and_logprobs():
    pytest.importorskip("transformers")
    import tiny_models

    from obsspec_gym.agents.engine.transformers import TransformersEngine

    model = tiny_models.qwen3()
    sampling = Sampling(max_tokens=20, temperature=0.8, top_k=20, top_p=0.9, stop_token_ids=(7, 11))

    async def main(engine):
        generations = [engine.submit([4, 5, *range(i)], sampling, seed=i) for i in range(10)]
        completions = [await generation for generation in generations]
        return [(c.token_ids, c.logprobs, c.finish_reason) for c in completions]

    with TransformersEngine(model, driver="inline") as direct:
        here = asyncio.run(main(direct))
    served = TransformersEngine(model, driver="thread")
    with CompletionServer(engine=served, context=tiny_models.CONTEXT) as server, engine_of(server) as engine:
        assert engine.capabilities == ALL
        assert asyncio.run(main(engine)) == here
    assert {reason for _, _, reason in here} == {FinishReason.STOP, FinishReason.LENGTH}


def test_the_rollout_command_takes_the_urls_of_servers(tmp_path, capsys):
    pytest.importorskip("transformers")
    from obsspec_gym.agents.engine.transformers import TransformersEngine
    from obsspec_gym.agents.loading import model_directory
    from obsspec_gym.cli import main

    served = TransformersEngine(model_directory("shipped", "policy"), driver="thread")
    words = ["--episodes", "1", "--envs", "1", "--world-model", "memory", "--sandbox", "local", "--out", str(tmp_path)]
    with CompletionServer(engine=served, context=None) as server:
        assert main(["rollout", "--engine", server.url, *words]) == 0
        trajectory = json.loads((tmp_path / "trajectories.jsonl").read_text().splitlines()[0])
        tokens = [step["token_ids"] for step in trajectory["steps"]]
        assert tokens
        assert {body["max_tokens"] for body in server.bodies} == {128}
        assert len(server.bodies) >= len(tokens)
    assert main(["rollout", "--engine", "nonsense", *words]) == 2
    assert "engine must be one of transformers, vllm, or the URLs of servers" in capsys.readouterr().err
