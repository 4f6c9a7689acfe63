"""Whether a Docker daemon can bound how much a container writes to a root file system of its own.

Storage drivers differ in that, and overlay2 does so only over XFS with project quotas (``pquota``). So it is tried.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping
from typing import Any

from obsspec_gym.envs.sandbox.daemon import Daemon, docker_host, refused, telling
from obsspec_gym.envs.sandbox.reaper import Owner
from obsspec_gym.errors import SandboxError

_PROBE = "64m"
_bounding: dict[str, bool] = {}
_lock = threading.Lock()


def disk_options(daemon: Daemon, image: str, disk_mib: int) -> dict[str, Any]:
    """What a container's host configuration needs for its root file system to be bounded; empty if nothing helps.

    Args:
        daemon: The daemon.
        image: An image that it has.
        disk_mib: How much may be written, in MiB.

    Raises:
        SandboxError: If the daemon does not answer.
    """
    return {"storage_opt": {"size": f"{disk_mib}m"}} if bounds_disk(daemon, image) else {}


def bounds_disk(daemon: Daemon, image: str) -> bool:
    """Whether it takes a size for a container of an image; asked once of each daemon."""
    with _lock:
        known = _bounding.get(docker_host())
    if known is None:
        with telling("say how it stores files"):
            known = may_bound_disk(daemon.api.info()) and _takes_size(daemon, image)
        with _lock:
            _bounding[docker_host()] = known
    return known


def may_bound_disk(info: Mapping[str, Any]) -> bool:
    """Whether a daemon that says this of itself may take a size that counts what a container writes, and only that."""
    backing = dict(pair for pair in info.get("DriverStatus") or () if len(pair) == 2).get("Backing Filesystem")
    return info.get("Driver") == "zfs" or (info.get("Driver") == "overlay2" and backing == "xfs")


def _takes_size(daemon: Daemon, image: str) -> bool:
    """Whether a container with a size can be made; none is left."""
    api, name = daemon.api, f"obsspec-{secrets.token_hex(8)}"
    host = api.create_host_config(storage_opt={"size": _PROBE}, network_mode="none")
    try:
        with telling("make a container"):
            api.create_container(image, ["true"], name=name, labels=Owner.current().labels(), host_config=host)
            api.remove_container(name, v=True, force=True)
    except SandboxError as error:
        if refused(error.__cause__):
            return False
        raise
    return True
