"""The kinds of sandbox that tests run on: Docker only where ``tests/docker/run`` gives it a daemon and an image."""

from __future__ import annotations

import os

from obsspec_gym.envs import sandbox

KINDS = tuple(kind for kind in sandbox.KINDS if kind != "docker" or "OBSSPEC_TEST_DAEMON" in os.environ)
