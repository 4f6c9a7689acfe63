"""Sandboxes started ahead."""

from __future__ import annotations

import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from obsspec_gym.envs.sandbox.pool import SandboxPool
from obsspec_gym.errors import ClosedError, InvalidArgumentError, SandboxError, SandboxUnavailableError


class Fake:
    """A sandbox that counts."""

    def __init__(self, made: list[Fake], start: Any = None) -> None:
        self.started = self.closed = self.broken = False
        self._start = start
        made.append(self)

    def start(self) -> None:
        if self._start:
            self._start(self)
        self.started = True

    def run(self, command: str, timeout: float) -> None:
        if self.broken:
            raise SandboxError("it broke")

    def close(self) -> None:
        self.closed = True


def eventually(condition: Any) -> bool:
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    return bool(condition())


def test_nothing_is_made_before_somebody_asks() -> None:
    made: list[Fake] = []
    pool = SandboxPool(lambda: Fake(made), size=2)
    assert made == []
    threads = threading.active_count()
    pool.close()
    pool.close()
    assert (made, threading.active_count()) == ([], threads)
    with pytest.raises(ClosedError, match="pool of sandboxes is closed"):
        pool.acquire()


def test_they_are_fresh_started_ahead_and_replaced() -> None:
    made: list[Fake] = []
    with SandboxPool(lambda: Fake(made), size=2) as pool:
        taken = [pool.acquire() for _ in range(5)]
        assert len({id(sandbox) for sandbox in taken}) == 5
        assert all(sandbox.started and not sandbox.closed for sandbox in taken)
        assert eventually(lambda: len(made) == 7 and made[-1].started)
    assert [sandbox.closed for sandbox in made] == [False] * 5 + [True] * 2


def test_one_that_broke_while_it_waited_is_not_handed_out() -> None:
    made: list[Fake] = []
    with SandboxPool(lambda: Fake(made), size=1) as pool:
        pool.acquire()
        assert eventually(lambda: len(made) == 2 and made[1].started)
        made[1].broken = True
        assert pool.acquire() is made[2]
        assert made[1].closed


def test_failures_surface_where_one_is_acquired() -> None:
    made: list[Fake] = []

    def start(sandbox: Fake) -> None:
        if len(made) < 3:
            raise SandboxUnavailableError(f"no {len(made)}")

    with SandboxPool(lambda: Fake(made, start), size=1) as pool:
        for number in (1, 2):
            with pytest.raises(SandboxUnavailableError, match=f"no {number}"):
                pool.acquire()
        assert pool.acquire() is made[2]
        assert [sandbox.closed for sandbox in made[:3]] == [True, True, False]


def test_close_ends_a_start_and_whoever_waits() -> None:
    made: list[Fake] = []

    def start(sandbox: Fake) -> None:
        assert eventually(lambda: sandbox.closed)
        raise ClosedError("closed while it started")

    pool = SandboxPool(lambda: Fake(made, start), size=1)
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(pool.acquire) for _ in range(2)]
        assert eventually(lambda: made)
        pool.close()
        for each in waiting:
            with pytest.raises(ClosedError):
                each.result(timeout=20)


def test_an_unreferenced_pool_closes_what_it_has() -> None:
    made: list[Fake] = []
    pool = SandboxPool(lambda: Fake(made), size=2)
    pool.acquire()
    assert eventually(lambda: len(made) == 3 and made[2].started)
    del pool
    gc.collect()
    assert [sandbox.closed for sandbox in made] == [False, True, True]


def test_its_size_is_checked() -> None:
    with pytest.raises(InvalidArgumentError, match="size must be at least 1, got 0"):
        SandboxPool(lambda: Fake([]), size=0)
