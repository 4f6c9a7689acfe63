"""Docker tests run only where ``tests/docker/run`` gives them a daemon and an image of their own."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from docker_tools import PID

from obsspec_gym.envs.sandbox.daemon import Daemon
from obsspec_gym.envs.sandbox.docker import DockerSandbox


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = os.path.dirname(__file__)
    for item in items:
        if not PID and str(item.path).startswith(here):
            item.add_marker(pytest.mark.skip("needs a Docker daemon of its own: make test-docker"))


@pytest.fixture(scope="session")
def daemon() -> Iterator[Daemon]:
    daemon = Daemon()
    yield daemon
    daemon.close()


@pytest.fixture
def docker_sandbox() -> Iterator[DockerSandbox]:
    sandbox = DockerSandbox(disk_mib=16, memory_mib=512)
    sandbox.start()
    yield sandbox
    sandbox.close()
