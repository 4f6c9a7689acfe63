"""Removing from a Docker daemon what a run left that was killed.

All that is made there is labelled with who made it. What belongs to a process that is certainly gone is removed; where
that cannot be told (another machine, another process namespace), it is left alone.
"""

from __future__ import annotations

import functools
import os
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from obsspec_gym.envs.sandbox.daemon import Daemon, docker_host, telling
from obsspec_gym.errors import SandboxError

LABEL = "obsspec_gym.owner"
"""Label of everything that is made; its value is the owner's process number."""

_reaped: set[str] = set()
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Owner:
    """A process, named so that no other one is ever taken for it.

    Attributes:
        pid: Its number.
        started: When it started, in clock ticks since the machine did: numbers are used again.
        namespace: Which namespace the number is of.
        boot: Which start of the machine.
        host: The machine's name.
    """

    pid: str
    started: str
    namespace: str
    boot: str
    host: str

    @classmethod
    def current(cls) -> Owner:
        """This process."""
        pid = os.getpid()
        return cls(str(pid), _started(pid), _namespace(), _boot(), socket.gethostname())

    @classmethod
    def read(cls, labels: Mapping[str, str]) -> Owner | None:
        """The owner that labels name, if they do."""
        pid, *rest = (labels.get(label, "") for label in _LABELS)
        return cls(pid, *rest) if pid.isdigit() and all(rest) else None

    def labels(self) -> dict[str, str]:
        """What says that something belongs to this process."""
        return dict(zip(_LABELS, asdict(self).values(), strict=True))

    def gone(self) -> bool:
        """Whether the process has certainly ended."""
        if self.host != socket.gethostname():
            return False
        if self.boot != _boot():
            return True
        return self.namespace == _namespace() and self.started != _started(int(self.pid))


_LABELS = (LABEL, *(f"{LABEL}.{name}" for name in ("started", "namespace", "boot", "host")))


def reap(daemon: Daemon) -> list[str]:
    """Removes containers with their volumes, volumes and images whose owners are gone.

    Returns:
        What was removed, such as ``container obsspec-1f3a``.

    Raises:
        SandboxError: If the daemon does not do it.
    """
    api = daemon.api
    with telling("remove what was left"):
        return [
            f"{kind} {name}"
            for kind, name, remove in _leftovers(api)
            # Somebody else may be removing the same.
            if _removed(remove)
        ]


def leftovers(daemon: Daemon) -> list[str]:
    """What :func:`reap` would remove."""
    with telling("list what was left"):
        return [f"{kind} {name}" for kind, name, _ in _leftovers(daemon.api)]


def reap_once(daemon: Daemon) -> None:
    """Reaps if this process has not done so yet; what goes wrong is the next process's to do."""
    with _lock:
        if docker_host() in _reaped:
            return
        _reaped.add(docker_host())
    try:
        reap(daemon)
    except SandboxError:
        return


def _leftovers(api: Any) -> list[tuple[str, str, Callable[[], None]]]:
    filters = {"label": LABEL}
    found: list[tuple[str, str, Callable[[], None]]] = []
    for container in filter(_orphaned, api.containers(all=True, filters=filters)):
        name = str((container.get("Names") or [container["Id"]])[0]).lstrip("/")
        remove = functools.partial(api.remove_container, container["Id"], v=True, force=True)
        found.append(("container", name, remove))
    volumes = filter(_orphaned, api.volumes(filters=filters)["Volumes"] or [])
    names = [volume["Name"] for volume in volumes]
    found += [("volume", name, functools.partial(api.remove_volume, name, force=True)) for name in names]
    ids = [image["Id"] for image in filter(_orphaned, api.images(filters=filters))]
    found += [("image", name, functools.partial(api.remove_image, name, force=True)) for name in ids]
    return found


def _orphaned(thing: Mapping[str, Any]) -> bool:
    owner = Owner.read(thing.get("Labels") or {})
    return owner is not None and owner.gone()


def _removed(remove: Callable[[], None]) -> bool:
    from docker.errors import APIError

    try:
        remove()
    except APIError as error:
        if error.status_code in (404, 409):  # gone, or on its way
            return False
        raise
    return True


def _started(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _namespace() -> str:
    return str(os.stat("/proc/self/ns/pid").st_ino)


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
