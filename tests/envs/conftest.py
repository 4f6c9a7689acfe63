from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
from sandbox_kinds import KINDS

from obsspec_gym.envs.sandbox import Sandbox, make_sandbox
from obsspec_gym.envs.sandbox.bubblewrap import bubblewrap_available
from obsspec_gym.envs.sandbox.local import NoIsolationWarning


def started(kind: str) -> Sandbox:
    """A started sandbox; skips where this machine cannot provide it."""
    if kind == "bubblewrap" and (reason := bubblewrap_available()):
        pytest.skip(reason)
    sandbox = make_sandbox(kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoIsolationWarning)
        sandbox.start()
    return sandbox


@pytest.fixture(scope="module", params=KINDS)
def shared_sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """One sandbox of each kind for the tests of a module."""
    sandbox = started(request.param)
    yield sandbox
    sandbox.close()


@pytest.fixture
def sandbox_kind(request: pytest.FixtureRequest) -> str:
    """The kind that ``shared_sandbox`` is of."""
    return str(request.node.callspec.params["shared_sandbox"])


@pytest.fixture
def sandbox(shared_sandbox: Sandbox) -> Sandbox:
    """The shared sandbox with a new shell, in an empty home."""
    assert shared_sandbox.run("kill -KILL $$").exit_code == 137
    assert shared_sandbox.run("cd && rm -rf .[!.]* *").exit_code == 0
    return shared_sandbox


@pytest.fixture(params=KINDS)
def own_sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """A sandbox for one test."""
    sandbox = started(request.param)
    yield sandbox
    sandbox.close()
