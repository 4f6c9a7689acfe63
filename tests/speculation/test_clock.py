"""The virtual clock: time jumps, order is by time, a standstill is an error."""

from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from obsspec_gym.speculation.clock import run_virtual


@given(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=20))
def test_sleepers_wake_in_the_order_of_their_times_and_at_them(delays: list[float]) -> None:
    woken: list[tuple[float, float]] = []

    async def sleep(delay: float) -> None:
        await asyncio.sleep(delay)
        woken.append((delay, asyncio.get_running_loop().time()))

    async def main() -> None:
        await asyncio.gather(*(sleep(delay) for delay in delays))

    run_virtual(main())
    assert [delay for delay, _ in woken] == sorted(delays)
    assert all(now == pytest.approx(delay, abs=1e-6) for delay, now in woken)


def test_waiting_takes_no_time() -> None:
    started = time.monotonic()
    run_virtual(asyncio.sleep(1e7))
    assert time.monotonic() - started < 60


def test_a_standstill_is_an_error_not_a_hang() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(RuntimeError, match="stands still"):
        run_virtual(main())


def test_timeouts_work_on_it() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await asyncio.sleep(31)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == pytest.approx(30)
