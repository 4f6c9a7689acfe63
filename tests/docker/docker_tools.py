"""What the Docker tests share."""

from __future__ import annotations

import os

from obsspec_gym.envs.sandbox.daemon import Daemon
from obsspec_gym.envs.sandbox.reaper import LABEL

PID = os.environ.get("OBSSPEC_TEST_DAEMON")
"""The daemon of ``tests/docker/run``, if these tests run under it."""


def ours(daemon: Daemon) -> set[str]:
    """Names of all containers that we made."""
    return {each["Names"][0].lstrip("/") for each in daemon.api.containers(all=True, filters={"label": LABEL})}
