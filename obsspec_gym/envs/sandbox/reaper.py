"""Removing from a Docker daemon what a run left that was killed.

Every container that is made there is labelled with who made it. What belongs to a process that is certainly gone is
removed; where that cannot be told (another machine, another process namespace), it is left alone, and can be listed.
"""

from __future__ import annotations

import enum
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from obsspec_gym.envs.sandbox.daemon import Daemon, docker_host, telling
from obsspec_gym.envs.sandbox.processes import start_time
from obsspec_gym.errors import SandboxError

LABEL = "obsspec_gym.owner"
"""Label of every container that is made; its value is the owner's process number."""

_MACHINE_IDS = ("/etc/machine-id", "/var/lib/dbus/machine-id")
_LARGEST_PID = 2**22  # the kernel's PID_MAX_LIMIT
_INITIAL = "4026531836"  # the kernel's number of the namespace that a machine starts with

_reaped: set[str] = set()
_lock = threading.Lock()


class Fate(enum.Enum):
    """What became of a process, as far as it can be told from here."""

    ALIVE = "alive"
    GONE = "gone"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Owner:
    """A process, named so that no other one is ever taken for it.

    Attributes:
        pid: Its number.
        started: When it started, in clock ticks since the machine did: numbers are used again.
        namespace: Which namespace the number is of.
        boot: Which start of the machine; no two machines, and no two starts of one, have the same.
        host: The machine's name.
        machine: The machine's id, which no other one has; empty if it has none.
    """

    pid: str
    started: str
    namespace: str
    boot: str
    host: str
    machine: str = ""

    @classmethod
    def current(cls) -> Owner:
        """This process."""
        pid = os.getpid()
        return cls(str(pid), _started(pid), _namespace(), _boot(), socket.gethostname(), machine_id())

    @classmethod
    def read(cls, labels: Mapping[str, str]) -> Owner | None:
        """The owner that labels name, if they do."""
        pid, *rest = (labels.get(label, "") for label in _LABELS)
        known = pid.isascii() and pid.isdigit() and 0 < int(pid) <= _LARGEST_PID
        return cls(pid, *rest) if known and all(rest[:-1]) else None

    def labels(self) -> dict[str, str]:
        """What says that something belongs to this process."""
        return dict(zip(_LABELS, asdict(self).values(), strict=True))

    def fate(self) -> Fate:
        """What became of the process: never ``GONE`` unless that is certain.

        Whether its files in ``/proc`` can be seen tells nothing: other users' may be hidden (``hidepid``).
        """
        here = Owner.current()
        if self.boot != here.boot:
            # An earlier start of this machine, and everything of it, is over; another machine may well be running.
            # Containers are passed over: they may have their id from an image, and share it.
            machine = (self.machine, self.host, self.namespace)
            same = bool(self.machine) and machine == (here.machine, here.host, here.namespace) and _INITIAL in machine
            return Fate.GONE if same else Fate.UNKNOWN
        if self.namespace != here.namespace:
            return Fate.UNKNOWN
        try:
            os.kill(int(self.pid), 0)
        except ProcessLookupError:
            return Fate.GONE
        except PermissionError:
            pass  # it is there, as another user's
        started = _started(int(self.pid))
        return Fate.GONE if started and started != self.started else Fate.ALIVE


_LABELS = (LABEL, *(f"{LABEL}.{name}" for name in ("started", "namespace", "boot", "host", "machine")))


def reap(daemon: Daemon) -> list[str]:
    """Removes the containers whose owners are gone, with their volumes.

    Returns:
        What was removed, such as ``container obsspec-1f3a``.

    Raises:
        SandboxError: If the daemon does not do it.
    """
    with telling("remove what was left"):
        # Somebody else may be removing the same.
        return [f"container {name}" for name, id_, _ in _containers(daemon.api, Fate.GONE) if _removed(daemon.api, id_)]


def leftovers(daemon: Daemon) -> list[str]:
    """What :func:`reap` would remove."""
    with telling("list what was left"):
        return [f"container {name}" for name, *_ in _containers(daemon.api, Fate.GONE)]


def strangers(daemon: Daemon) -> list[str]:
    """What is left alone because nobody here can tell whether its owner lives; says whose it is."""
    with telling("list what was left"):
        found = _containers(daemon.api, Fate.UNKNOWN)
        return [f"container {name} (process {owner.pid} on {owner.host})" for name, _, owner in found]


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


def machine_id() -> str:
    """This machine's id; empty if it has none."""
    for path in _MACHINE_IDS:
        try:
            if found := Path(path).read_text(errors="replace").strip():
                return found
        except OSError:
            continue
    return ""


def _containers(api: Any, fate: Fate) -> Iterator[tuple[str, str, Owner]]:
    """Name, id and owner of each container whose owner met that fate."""
    for container in api.containers(all=True, filters={"label": LABEL}):
        owner = Owner.read(container.get("Labels") or {})
        if owner is not None and owner.fate() is fate:
            name = str((container.get("Names") or [container["Id"]])[0]).lstrip("/")
            yield name, container["Id"], owner


def _removed(api: Any, container: str) -> bool:
    from docker.errors import APIError

    try:
        api.remove_container(container, v=True, force=True)
    except APIError as error:
        if error.status_code in (404, 409):  # gone, or on its way
            return False
        raise
    return True


def _started(pid: int) -> str:
    started = start_time(pid)
    return "" if started is None else str(started)


def _namespace() -> str:
    return str(os.stat("/proc/self/ns/pid").st_ino)


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
