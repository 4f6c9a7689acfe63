"""Who owns a sandbox closes it, whatever it is doing."""

from __future__ import annotations

import dataclasses
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from obsspec_gym.envs.owner import SandboxOwner
from obsspec_gym.envs.sandbox.layers import Layers, Resources
from obsspec_gym.envs.sandbox.local import LocalSandbox
from obsspec_gym.errors import ClosedError, SandboxError, SandboxUnavailableError

pytestmark = pytest.mark.filterwarnings("ignore::obsspec_gym.envs.sandbox.local.NoIsolationWarning")


class SlowSandbox(LocalSandbox):
    """One whose start would take longer than anybody waits."""

    def __init__(self) -> None:
        super().__init__()
        self.starting = threading.Event()

    def _build(self, resources: Resources) -> Layers:
        layers = super()._build(resources)
        self.starting.set()
        return dataclasses.replace(layers, prepare="sleep 25")


def test_close_ends_a_start_under_way() -> None:
    owner, sandbox = SandboxOwner(), SlowSandbox()
    with ThreadPoolExecutor(1) as pool:
        start = pool.submit(owner.start, lambda: sandbox)
        assert sandbox.starting.wait(30.0)
        time.sleep(0.2)  # the supervisor is up, and at work
        owner.close()
        with pytest.raises(ClosedError, match="the environment is closed"):
            start.result(timeout=10.0)
    with pytest.raises(ClosedError):
        sandbox.run("true")


class Closing(SandboxUnavailableError):
    """What a sandbox says that is closed while it starts."""


class Fake:
    """A sandbox as far as an owner looks at it."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.started = self.closed = 0
        self.owner: SandboxOwner | None = None

    def start(self) -> None:
        self.started += 1
        if self.owner is not None:
            self.owner.close()
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        self.closed += 1


def test_an_error_at_the_start_leaves_nothing_and_another_may_follow() -> None:
    owner, broken, fine = SandboxOwner(), Fake(SandboxError("broken")), Fake()
    with pytest.raises(SandboxError, match="broken"):
        owner.start(lambda: broken)  # type: ignore[arg-type, return-value]
    assert broken.closed == 1
    assert owner.start(lambda: fine) is fine  # type: ignore[arg-type, return-value, comparison-overlap]
    owner.close()
    owner.close()
    assert (broken.closed, fine.closed) == (1, 1)


def test_whatever_a_start_says_that_was_closed_it_was_closed() -> None:
    for error in (None, Closing("gone")):
        owner, sandbox = SandboxOwner(), Fake(error)
        sandbox.owner = owner
        with pytest.raises(ClosedError):
            owner.start(lambda sandbox=sandbox: sandbox)  # type: ignore[misc]
        assert sandbox.closed >= 1


def test_after_close_nothing_starts() -> None:
    owner, sandbox = SandboxOwner(), Fake()
    owner.close()
    with pytest.raises(ClosedError):
        owner.start(lambda: sandbox)  # type: ignore[arg-type, return-value]
    assert (sandbox.started, sandbox.closed) == (0, 1)
