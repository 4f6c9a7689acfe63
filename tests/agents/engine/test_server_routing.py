"""Where requests go: to the server that knows the conversation, unless it has too much to do."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from obsspec_gym.agents.engine.servers.gate import Gate
from obsspec_gym.agents.engine.servers.routing import Imbalance, Router
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.types import Hint, Priority

LOADS = st.lists(st.integers(0, 200), min_size=1, max_size=6)


@given(LOADS, st.integers(0, 5), st.floats(0, 1), st.integers(0, 3))
def test_a_conversation_stays_until_the_servers_are_out_of_balance(loads, later, progress, seed):
    imbalance = Imbalance(absolute=32, relative=1.5)
    router = Router(imbalance, seed=seed)
    home = router.choose(Hint("a"), [0] * len(loads))
    chosen = router.choose(Hint("a", turn=1, progress=progress), loads)
    if imbalance.found(loads, progress):
        assert loads[chosen] == min(loads)
    else:
        assert chosen == home
    assert router.choose(Hint("a", turn=2), [0] * len(loads)) == chosen, "it stays where it was moved"


@given(LOADS, st.integers(0, 100))
def test_what_is_new_or_nobodys_goes_to_the_idlest(loads, seed):
    router = Router(seed=seed)
    assert loads[router.choose(None, loads)] == min(loads)
    assert loads[router.choose(Hint(), loads)] == min(loads)
    assert loads[router.choose(Hint("new"), loads)] == min(loads)


@pytest.mark.parametrize("hints", [[None] * 600, [Hint(number) for number in range(600)]])
def test_ties_do_not_always_go_to_the_first_server(hints):
    router = Router(seed=1)
    counts = Counter(router.choose(hint, [0, 0, 0]) for hint in hints)
    assert set(counts) == {0, 1, 2}
    assert min(counts.values()) > 150


def test_the_same_seed_breaks_ties_in_the_same_way():
    choices = [[Router(seed=seed).choose(None, [0] * 8) for _ in range(1)] for seed in (3, 3, 4, 5, 6)]
    assert choices[0] == choices[1]
    assert len({tuple(choice) for choice in choices}) > 1


def test_out_of_balance_needs_both_the_difference_and_the_factor():
    imbalance = Imbalance(absolute=10, relative=2.0)
    assert not imbalance.found([10, 0], 0.0)
    assert imbalance.found([11, 0], 0.0)
    assert not imbalance.found([40, 20], 0.0)
    assert imbalance.found([41, 20], 0.0)
    assert not imbalance.found([11, 0], 1.0), "what is nearly done stays longer"
    assert imbalance.found([21, 0], 1.0)


def test_a_conversation_leaves_a_server_that_cannot_be_used_and_does_not_come_back_by_itself():
    router = Router()
    home = router.choose(Hint("a"), [0, 0])
    other = 1 - home
    assert router.choose(Hint("a", turn=1), [0, 0], usable=[other]) == other
    assert router.choose(Hint("a", turn=2), [0, 0]) == other


def test_at_an_imbalance_of_others_a_conversation_stays_with_the_idlest_that_knows_it():
    for seed in range(20):
        router = Router(Imbalance(absolute=1, relative=1.0), seed=seed)
        assert router.choose(Hint("a"), [9, 0, 9]) == 1
        assert router.choose(Hint("a", turn=1), [0, 0, 9]) == 1


@pytest.mark.parametrize("arguments", [{"absolute": -1}, {"relative": 0.5}, {"relative": float("nan")}])
def test_a_bad_imbalance_is_refused(arguments):
    with pytest.raises(InvalidArgumentError, match="imbalance"):
        Imbalance(**arguments)


@dataclass(eq=False)
class Standing:
    arrival: int
    priority: Priority


@given(st.integers(1, 4), st.lists(st.sampled_from(Priority), min_size=1, max_size=12), st.data())
def test_the_gate_lets_in_as_many_as_it_has_places_and_committed_ones_first(places, priorities, data):
    gives_up = {i for i in range(len(priorities)) if i >= places and data.draw(st.booleans())}

    async def main():
        gate, inside, entered = Gate(places), set(), []
        leave = [asyncio.Event() for _ in priorities]

        async def visit(standing):
            async with gate.place(standing):
                entered.append(standing.arrival)
                inside.add(standing.arrival)
                assert len(inside) <= places
                await leave[standing.arrival].wait()
                inside.discard(standing.arrival)

        tasks = [asyncio.create_task(visit(Standing(i, priority))) for i, priority in enumerate(priorities)]
        await asyncio.sleep(0)
        for i in gives_up:
            tasks[i].cancel()
        for _ in range(len(priorities)):
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            if inside:
                leave[min(inside)].set()
        await asyncio.gather(*tasks, return_exceptions=True)
        return entered

    entered = asyncio.run(main())
    first = list(range(min(places, len(priorities))))
    waiting = [i for i in range(len(priorities)) if i >= places and i not in gives_up]
    assert entered == first + sorted(waiting, key=lambda i: (priorities[i], i))


def test_who_is_let_in_while_giving_up_passes_the_place_on():
    async def main():
        gate, order = Gate(1), []

        async def visit(name):
            async with gate.place(Standing(name, Priority.COMMITTED)):
                order.append(name)
                await asyncio.sleep(0)
            if name == 0:
                second.cancel()  # its turn has come, and it does not know yet

        first, second, third = (asyncio.create_task(visit(name)) for name in range(3))
        await asyncio.wait([first, second, third])
        assert second.cancelled()
        return order

    assert asyncio.run(asyncio.wait_for(main(), 10)) == [0, 2]


def test_a_promoted_request_goes_first():
    async def main():
        gate, order = Gate(1), []

        async def visit(standing):
            async with gate.place(standing):
                order.append(standing.arrival)
                await asyncio.sleep(0)

        everyone = [Standing(i, Priority.SPECULATIVE) for i in range(4)]
        tasks = [asyncio.create_task(visit(standing)) for standing in everyone]
        await asyncio.sleep(0)
        everyone[3].priority = Priority.COMMITTED
        await asyncio.gather(*tasks)
        return order

    assert asyncio.run(main()) == [0, 3, 1, 2]
