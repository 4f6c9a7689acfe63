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

import functools
import logging
import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from obsspec_gym.envs.sandbox.bwrap_arguments import (
    ARGUMENTS,
    MIB,
    PROGRAM,
    devices,
    inner_arguments,
    namespaces,
    outer_arguments,
    prepare,
)
from obsspec_gym.envs.sandbox.bwrap_program import NOBODY, find_program
from obsspec_gym.envs.sandbox.cgroups import ControlGroup, control_groups_available
from obsspec_gym.envs.sandbox.frozen_clock import frozen_clock_library, read_frozen_clock
from obsspec_gym.envs.sandbox.image_root import ASIDE, Account, ImageRoot
from obsspec_gym.envs.sandbox.imaged import HOME, ImagedSandbox
from obsspec_gym.envs.sandbox.layers import Layers, Resources
from obsspec_gym.envs.sandbox.persistent import PersistentSandbox
from obsspec_gym.envs.sandbox.pipes import Intake
from obsspec_gym.envs.sandbox.supervised import SupervisedSandbox
from obsspec_gym.errors import InvalidArgumentError, SandboxError, SandboxUnavailableError

logger = logging.getLogger(__name__)

_CLOCK = "/etc/frozen_clock.so"
_VERIFIER = "/verifier"


class BubblewrapSandbox(ImagedSandbox, SupervisedSandbox):
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

    needs = "root"

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
        image = None if root is None else ImageRoot(Path(root), user, workdir, disk_mib)
        super().__init__(image, env)
        for name, value in (
            ("disk_mib", disk_mib),
            ("file_mib", file_mib),
            ("memory_mib", memory_mib),
            ("processes", processes),
            ("total_mib", total_mib),
        ):
            if value is not None and value < 1:
                raise InvalidArgumentError(f"{name} must be at least 1, got {value}")
        if root is None and (user, workdir, env or None) != ("agent", None, None):
            raise InvalidArgumentError("user, workdir and env are for sandboxes with an image: give root as well")
        self._frozen_at = read_frozen_clock(frozen_clock)
        if root is not None and self._frozen_at is not None:
            raise InvalidArgumentError("frozen_clock is for sandboxes without an image: leave root out")
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
        self._disk = str(disk_mib * MIB)
        # The kernel shall end the agent's processes before the supervisor. Sizes in KiB.
        self._limits = (
            f"echo 500 >/proc/self/oom_score_adj; ulimit -c 0 -n 1024 -f {file_mib * 1024} -v {memory_mib * 1024} "
            f"-u {processes}"
        )

    def _destination(self) -> str:
        if self._image is None:
            return super()._destination()
        self._known(self._image)
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

    def _agent_prefix(self, image: ImageRoot, account: Account) -> str:
        return image.enter("agent", account, image.workdir or account.home)

    def _accounts(self, image: ImageRoot) -> str:
        return image.lookup()

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
        program, libraries = find_program()
        if self._total is not None or (sandbox_uid() == 0 and control_groups_available() is None):
            resources.group = ControlGroup(self._total, self._processes)
        start = (*(resources.group.prefix if resources.group else ()), *_unprivileged(), program)
        if self._image is not None:
            return _with_image(self._image, start, libraries, self._disk, self._limits)
        return Layers(
            outer=(*start, *outer_arguments(program, libraries, self._disk), *self._clock(), "--"),
            prepare=prepare(
                self._disk, agent=inner_arguments(), judge=inner_arguments("--ro-bind", _VERIFIER, _VERIFIER)
            ),
            inner=f"{PROGRAM}/bin/bwrap --args 9 9<{ARGUMENTS}/agent --",
            judging=f"{PROGRAM}/bin/bwrap --args 9 9<{ARGUMENTS}/judge --",
            home=HOME,
            verifier=_VERIFIER,
            limits=self._limits,
            base="/",
            kept=(HOME[1:], "tmp"),
            depth=2,
        )


def bubblewrap_command() -> tuple[str, ...]:
    """The words that start bubblewrap as sandboxes are started here; the last is the program itself."""
    return (*_unprivileged(), find_program()[0])


def sandbox_uid() -> int:
    """Whom sandboxes are started as on this machine."""
    return NOBODY if _unprivileged() else os.geteuid()


def _with_image(image: ImageRoot, start: tuple[str, ...], libraries: str | None, disk: str, limits: str) -> Layers:
    first = [prepare(disk), image.prepare(f"{PROGRAM}/bin/bwrap", namespaces(), [*devices(), "--chdir", "/"])]
    return Layers(
        outer=(*start, *outer_arguments(start[-1], libraries, disk), *image.outer(), "--"),
        prepare=" &&\n".join(first),
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
    prefix = (setpriv, "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups")
    refused = _probe(prefix)
    if refused is not None:
        logger.warning("sandboxes are started as root, for as nobody they cannot be had here: %s", refused)
        return ()
    return prefix


def _probe(prefix: tuple[str, ...]) -> str | None:
    """What goes wrong with both layers, as we use them, started by ``prefix``; None if nothing does."""
    program, libraries = find_program()
    inner = [f"{PROGRAM}/bin/bwrap", *inner_arguments(), "--", "true"]
    outer = [*prefix, program, *outer_arguments(program, libraries, str(MIB)), "--", *inner]
    try:
        done = subprocess.run(outer, stdin=subprocess.DEVNULL, capture_output=True, timeout=20.0, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return None
    return done.stderr.decode("utf-8", "replace").strip().replace("\n", "; ") or f"exit status {done.returncode}"
