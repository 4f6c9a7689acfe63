"""The simulated server: jumps over steps, a bounded prefix cache, priorities, cancellation."""

import asyncio
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from obsspec_gym.agents.engine.prefix_cache import PrefixCache
from obsspec_gym.agents.engine.serving import ServingEngine, ServingSpeed, tokens
from obsspec_gym.agents.history import History
from obsspec_gym.errors import ClosedError, InvalidArgumentError
from obsspec_gym.speculation.clock import run_virtual
from obsspec_gym.types import EpisodeId, Priority

SLOWING = ServingSpeed(
    step=5e-3, step_sequence=1e-3, step_context=1e-5, prefill=2e-3, prefill_token=1e-4, prefill_least=3e-3, chunk=64
)


class OneStepAtATime(ServingEngine):
    """The same server, without jumps."""

    def _steps_ahead(self) -> int:
        return 1


def conversation(name: str, *lengths: int) -> list[History]:
    """The histories of a conversation at its observations; lengths of prompt, action, observation, action, ..."""
    history = History.start(EpisodeId(name), "task", tokens(lengths[0]))
    histories = [history]
    for number, (action, observation) in enumerate(zip(lengths[1::2], lengths[2::2], strict=True)):
        history = history.act(number, tokens(action)).observe(number, tokens(observation))
        histories.append(history)
    return histories


def served(engine: ServingEngine, plan: Sequence[tuple[float, History, int, Priority, float | None]]) -> list[object]:
    """Submits each request at its time, cancels it where asked; what became of each, with the times."""

    async def one(at: float, history: History, length: int, priority: Priority, patience: float | None) -> object:
        clock = asyncio.get_running_loop().time
        await asyncio.sleep(at)
        generation = engine.submit(history, length, priority=priority)
        if patience is not None:
            await asyncio.sleep(patience)
            partial = len(generation.partial())
            if not generation.done():
                generation.cancel()
                return "cancelled", partial
        completion = await generation
        return len(completion.token_ids), round(clock(), 9)

    async def everything() -> list[object]:
        results = list(await asyncio.gather(*(one(*part) for part in plan)))
        assert engine.load().running == engine.load().waiting == 0
        engine.close()
        return results

    return run_virtual(everything())


def test_a_completion_takes_its_prompt_and_a_step_for_each_further_token() -> None:
    [history] = conversation("a", 100)
    [(length, seconds)] = served(ServingEngine(SLOWING), [(0.0, history, 11, Priority.COMMITTED, None)])
    reading = (2e-3 + 64e-4) + (2e-3 + 36e-4)  # two chunks; the second brings the first token
    decoding = sum(5e-3 + 1e-3 + 1e-5 * (100 + done) for done in range(1, 11))
    assert (length, seconds) == (11, pytest.approx(reading + decoding))


def test_what_was_read_before_is_not_read_again() -> None:
    first, second = conversation("a", 100, 20, 30)
    engine = ServingEngine(SLOWING)
    served(engine, [(0.0, first, 20, Priority.COMMITTED, None), (5.0, second, 5, Priority.COMMITTED, None)])
    assert engine.counters.read == 100 + 30
    assert engine.counters.found == 120


def test_members_of_a_group_share_their_prompt() -> None:
    engine = ServingEngine(SLOWING)
    members = [History.start(EpisodeId("task", sample), "task", tokens(100)) for sample in range(4)]
    served(engine, [(0.0, member, 5, Priority.COMMITTED, None) for member in members])
    assert engine.counters.read == 100 + 3  # the last token of a prompt is always computed


def test_committed_requests_are_admitted_first_and_a_promotion_counts() -> None:
    speed = ServingSpeed(step=0.01, max_running=1)

    async def order() -> list[str]:
        engine, done = ServingEngine(speed), []
        names = {"runs": Priority.COMMITTED, "guess": Priority.SPECULATIVE, "sure": Priority.COMMITTED}
        generations = {
            name: engine.submit(conversation(name, 10)[0], 5, priority=priority) for name, priority in names.items()
        }
        generations["promoted"] = engine.submit(conversation("promoted", 10)[0], 5, priority=Priority.SPECULATIVE)
        generations["promoted"].promote()
        for name, generation in generations.items():
            generation.add_done_callback(lambda name=name: done.append(name))
        await asyncio.gather(*generations.values())
        await asyncio.sleep(0)
        engine.close()
        return done

    assert run_virtual(order()) == ["runs", "sure", "promoted", "guess"]


def test_the_engine_refuses_what_it_cannot_do() -> None:
    async def refuse() -> None:
        engine = ServingEngine(ServingSpeed(step=0.01, capacity=100))
        [history] = conversation("a", 90)
        with pytest.raises(InvalidArgumentError, match="at least one token"):
            engine.submit(history, 0)
        with pytest.raises(InvalidArgumentError, match="have 101 tokens"):
            engine.submit(history, 11)
        engine.close()
        with pytest.raises(ClosedError):
            engine.submit(history, 1)

    run_virtual(refuse())


requests = st.tuples(
    st.floats(0, 1),
    st.integers(0, 5),
    st.integers(1, 60),
    st.sampled_from(Priority),
    st.one_of(st.none(), st.floats(0.001, 0.5)),
)


@given(st.lists(requests, min_size=1, max_size=12), st.integers(1, 8), st.sampled_from([400, 10**6]))
@settings(max_examples=60)
def test_jumping_over_steps_changes_nothing(
    drawn: list[tuple[float, int, int, Priority, float | None]], running: int, capacity: int
) -> None:
    speed = ServingSpeed(
        step=5e-3, step_sequence=1e-3, step_context=1e-5, prefill=2e-3, prefill_token=1e-4, prefill_least=3e-3,
        chunk=64, max_running=running, capacity=capacity,
    )  # fmt: skip
    chain = conversation("a", 40, 20, 30, 10, 50) + conversation("b", 90, 10, 30, 20, 20)
    # Never two at the very same moment: which of them an event loop wakes first is nobody's promise.
    plan = [
        (at + 1.7e-7 * place, chain[which], length, priority, patience)
        for place, (at, which, length, priority, patience) in enumerate(drawn)
    ]
    jumps, steps = ServingEngine(speed), OneStepAtATime(speed)
    assert served(jumps, plan) == served(steps, plan)
    assert jumps.counters.decoded == steps.counters.decoded
    assert jumps.counters.read == steps.counters.read
    assert jumps.counters.preempted == steps.counters.preempted


@given(st.integers(0, 10_000), st.integers(200, 600))
@settings(max_examples=60)
def test_the_cache_keeps_its_books_and_its_bound(seed: int, capacity: int) -> None:
    rng, cache = Random(seed), PrefixCache(capacity)
    chains = [conversation(str(name), 50, 10, 20, 15, 30, 5, 40) for name in range(5)]
    held: list[History] = []
    for _ in range(60):
        if held and rng.random() < 0.5:
            cache.release(held.pop(rng.randrange(len(held))), rng.randrange(40))
        else:
            history = rng.choice(rng.choice(chains))
            before = cache.used
            found = cache.admit(history, growing=0)
            if found is not None:
                held.append(history)
                assert 0 <= found <= history.length
                assert cache.used <= max(before, capacity)
            else:
                assert cache.used <= before
        assert cache.used == sum(prefix.own + prefix.after for prefix in cache._held.values())
        assert all(prefix.children >= 0 and prefix.users >= 0 for prefix in cache._held.values())
    while held:
        cache.release(held.pop(), 0)
    assert cache.shrink(capacity)
    assert cache.used == 0
    assert not cache._held
