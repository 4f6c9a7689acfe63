"""Control groups: what all processes of a sandbox may use together, where this process may make groups below its own.

Groups are only ever made below the one this process is in, so whatever bounds this process bounds its sandboxes as
well, and neither this process nor any other is moved. Version 1 and version 2 of the kernel's interface are
understood; version 2 has no controllers below a group with processes of its own, unless it is the root of the machine,
so there this is often refused, with the reason.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from obsspec_gym.errors import SandboxError, SandboxUnavailableError

_MIB = 2**20
_OWN_PROCESSES = 32  # of the sandbox itself, beside the agent's
_REMOVE_SECONDS = 5.0
# Runs the sandbox and removes the groups at its end, also where nobody else is left to do it. It keeps none of the
# pipes that it passes on: whoever writes into one must see that its reader is gone. The sandbox is a job of its own:
# what merely runs beside a script would ignore SIGINT.
_GUARD = """\
memory=$1 pids=$2; shift 2
set -m; "$@" <&0 & set +m
exec </dev/null >/dev/null 2>&1
for fd in /proc/$$/fd/*; do fd=${fd##*/}; ((fd > 2)) && exec {fd}>&-; done
wait $!
for group in "$memory" "$pids"; do
    until rmdir "$group" || [[ ! -d $group ]] || ((left++ > 100)); do sleep 0.05; done
done
"""


@dataclass(frozen=True, slots=True)
class Controllers:
    """Our own group in the hierarchies that bound memory and processes.

    Attributes:
        memory: The group's directory in the hierarchy of the memory controller.
        pids: The same of the pids controller; the same directory in version 2.
        version: Of the kernel's interface: 1 or 2.
    """

    memory: Path
    pids: Path
    version: int


def usual_total_mib(files_mib: int, memory_mib: int) -> int:
    """What a sandbox may use in all where nobody says so: its files and one process, at most half of this machine.

    Args:
        files_mib: What its file systems hold, in MiB.
        memory_mib: Address space of a process, in MiB.

    Example:
        >>> usual_total_mib(48, 16)
        64
    """
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // _MIB
    return min(files_mib + memory_mib, machine // 2)


@functools.cache
def control_groups_available() -> str | None:
    """Why no groups can be made here and what can be done, in one sentence; None when they can. Probed once."""
    try:
        group = ControlGroup(64, 16)
    except SandboxUnavailableError as error:
        return str(error)
    group.remove()
    return None


class ControlGroup:
    """A group for one sandbox, made at once.

    Args:
        memory_mib: Memory of all processes and files together, in MiB; there is no swap beside it. Not bounded if
            ``None``.
        processes: Processes and threads of the agent at a time.

    Raises:
        SandboxUnavailableError: If no group can be made here; says why and what can be done.
    """

    def __init__(self, memory_mib: int | None, processes: int) -> None:
        controllers = _own_controllers(Path("/proc/self/cgroup").read_text())
        name = f"obsspec-{os.getpid()}-{secrets.token_hex(4)}"
        self._directories: list[Path] = []
        self._admission: _Admission | None = None
        try:
            for parent in dict.fromkeys((controllers.memory, controllers.pids)):
                _sweep(parent)
                (parent / name).mkdir()
                self._directories.append(parent / name)
            if memory_mib is not None:
                _bound_memory(controllers, name, str(memory_mib * _MIB))
            _write(controllers.pids / name / "pids.max", str(processes + _OWN_PROCESSES))
        except OSError as error:
            self.remove()
            raise SandboxUnavailableError(
                f"no control group can be made in {controllers.memory} ({error.strerror}): run as root or in a group "
                "delegated to you, or leave the memory of the whole sandbox unbounded."
            ) from error

    @property
    def prefix(self) -> tuple[str, ...]:
        """Command prefix: when what it starts has ended, the group is removed if nobody else does it."""
        return ("bash", "-c", _GUARD, "guard", str(self._directories[0]), str(self._directories[-1]))

    def admit(self, pid: int) -> None:
        """Takes a process in, with all that it starts from the end of :meth:`confirm` on.

        The kernel may take many milliseconds over it, so it is done beside whatever else a start has to do.
        """
        self._admission = _Admission(self._directories, pid)

    def confirm(self) -> None:
        """Waits until the process is in. Idempotent.

        Raises:
            SandboxError: If it could not be taken in.
        """
        if self._admission is not None and (error := self._admission.outcome()) is not None:
            raise SandboxError(f"the sandbox could not be put into its control group: {error}")

    def remove(self) -> None:
        """Removes it once its processes are gone. Idempotent."""
        if self._admission is not None:
            self._admission.outcome()
        deadline = time.monotonic() + _REMOVE_SECONDS
        while self._directories and time.monotonic() < deadline:
            self._directories = [path for path in self._directories if not _removed(path)]
            if self._directories:
                time.sleep(0.005)


class _Admission:
    """One process on its way into groups, in a thread of its own."""

    def __init__(self, groups: Sequence[Path], pid: int) -> None:
        self._groups = tuple(groups)
        self._pid = pid
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._run, name="obsspec-admission", daemon=True)
        self._thread.start()

    def outcome(self) -> OSError | None:
        """Waits for the end of it; what went wrong."""
        if self._thread is not threading.current_thread():  # where the collector comes by and finds an abandoned start
            self._thread.join()
        return self._error

    def _run(self) -> None:
        try:
            for group in self._groups:
                (group / "cgroup.procs").write_text(str(self._pid))
        except OSError as error:
            self._error = error


@functools.lru_cache(maxsize=1)
def _own_controllers(group: str) -> Controllers:
    """As :func:`_controllers` for this process: kept, for the table of mounts is long to read.

    Args:
        group: What /proc says of the groups it is in; with other ones they are looked up anew.
    """
    return _controllers(Path("/proc/self"))


def _controllers(process: Path) -> Controllers:
    """Our own group, from what /proc says of this process.

    Raises:
        SandboxUnavailableError: If there are no controllers for memory and processes.
    """
    ours = [line.split(":", 2) for line in (process / "cgroup").read_text().splitlines()]
    mounts = [line.split(" - ") for line in (process / "mountinfo").read_text().splitlines()]
    found: dict[str, Path] = {}
    unified: Path | None = None
    for place, file_system in mounts:
        root, where = place.split()[3:5]
        kind, _, options = file_system.split()
        for _, controllers, path in ours:
            names = set(controllers.split(",")) if controllers else set()
            inside = Path(where) / Path(path).relative_to(root) if Path(path).is_relative_to(root) else Path(where)
            if kind == "cgroup" and names and names <= set(options.split(",")):
                found.update(dict.fromkeys(names, inside))
            elif kind == "cgroup2" and not names:
                unified = inside
    if {"memory", "pids"} <= found.keys():
        return Controllers(found["memory"], found["pids"], 1)
    if unified is not None:
        return Controllers(unified, unified, _require_unified(unified))
    raise SandboxUnavailableError("this machine has no control groups for memory and processes: mount them.")


def _require_unified(group: Path) -> int:
    """Has the controllers work below a group of version 2; returns the version."""
    needed = {"memory", "pids"}
    try:
        there = set((group / "cgroup.controllers").read_text().split())
        if not needed <= there:
            missing = " and ".join(sorted(needed - there))
            raise SandboxUnavailableError(f"the control group {group} has no controller for {missing}: delegate it.")
        if not needed <= set((group / "cgroup.subtree_control").read_text().split()):
            (group / "cgroup.subtree_control").write_text("+memory +pids")
    except OSError as error:
        raise SandboxUnavailableError(
            f"the control group {group} cannot have bounded groups below it ({error.strerror}): version 2 of control "
            "groups allows that below processes only in the machine's root group, to its root."
        ) from error
    return 2


def _bound_memory(controllers: Controllers, name: str, memory: str) -> None:
    if controllers.version == 1:
        _write(controllers.memory / name / "memory.limit_in_bytes", memory)
        _write(controllers.memory / name / "memory.memsw.limit_in_bytes", memory, optional=True)
    else:
        _write(controllers.memory / name / "memory.max", memory)
        _write(controllers.memory / name / "memory.swap.max", "0", optional=True)


def _write(path: Path, value: str, *, optional: bool = False) -> None:
    """Sets a limit; ``optional`` for what not every kernel has."""
    try:
        path.write_text(value)
    except OSError:
        if not optional:
            raise


def _removed(path: Path) -> bool:
    """Tries to remove a group; whether it is gone."""
    try:
        path.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _sweep(parent: Path) -> None:
    """Removes empty groups of processes of ours that are gone: killed together with all that would have done it."""
    for path in parent.glob("obsspec-*-*"):
        pid = path.name.split("-")[1]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            with contextlib.suppress(OSError):
                path.rmdir()
