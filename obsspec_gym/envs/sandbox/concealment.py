"""Where this project itself lies in what a sandbox shows of this machine, which an agent must not see.

The answers of generated tasks are functions of their index, in a package that the agent's Python could import.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from pathlib import Path

import obsspec_gym
from obsspec_gym.envs.sandbox.image_root import check_reach
from obsspec_gym.errors import SandboxUnavailableError

_INSTALLED = ("lib*/python3*/*-packages/obsspec_gym", "local/lib*/python3*/*-packages/obsspec_gym")


def concealed(shown: Iterable[str], uid: int) -> list[str]:
    """Directories to be hidden: the package that runs, and every copy that is installed for the system's Python.

    Args:
        shown: Directories of this machine that a sandbox shows.
        uid: Whom sandboxes are started as; what that user cannot get to is hidden already, and cannot be covered.
    """
    shown = list(shown)
    running = Path(obsspec_gym.__file__).parent.resolve()
    found = sorted({running, *_installed()})
    return [str(path) for path in found if any(map(path.is_relative_to, shown)) and _reachable(path, uid)]


@functools.cache
def _installed() -> tuple[Path, ...]:
    return tuple(path.resolve() for pattern in _INSTALLED for path in Path("/usr").glob(pattern))


def _reachable(path: Path, uid: int) -> bool:
    if uid == os.geteuid():
        return True
    try:
        check_reach(path, uid)
    except SandboxUnavailableError:
        return False
    return True
