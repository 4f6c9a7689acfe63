"""The default sandbox: Linux namespaces by bubblewrap, no root and no daemon needed.

Two layers. The outer one owns a file system that exists in memory only, bounded in size, and has neither network nor
the host's files (but ``/usr``, read-only). The supervisor lives there. The inner layer, one for each shell, is a
process namespace of its own over the same ``/home/agent`` and ``/tmp``: what an agent runs sees neither the supervisor
nor the verifier's files, and ends to the last process when its first process is killed. Nothing is ever written on the
host; when the sandbox is closed, or this process dies, the kernel removes everything.

What is bounded: the file systems and how many files they hold, each file, core dumps, memory a process, and the number
of processes; where control groups can be had also the memory of all processes and files together. Where this process
is root, sandboxes are started as nobody, for the kernel excuses root from the number of processes; where that is not
possible they are started as root, bounded by a control group only. The sandbox does not bound CPU time; timeouts do.
This project's own package is hidden wherever it lies below ``/usr``: the answers of generated tasks are in it.

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
from dataclasses import asdict
from pathlib import Path
from typing import Any

from obsspec_gym.envs.sandbox.bwrap_arguments import (
    ARGUMENTS,
    CLOCK,
    PROGRAM,
    devices,
    inner_arguments,
    namespaces,
    outer_arguments,
    prepare,
    system_directories,
)
from obsspec_gym.envs.sandbox.bwrap_limits import Limits
from obsspec_gym.envs.sandbox.bwrap_program import NOBODY, find_program
from obsspec_gym.envs.sandbox.concealment import concealed
from obsspec_gym.envs.sandbox.frozen_clock import frozen_clock_library, read_frozen_clock
from obsspec_gym.envs.sandbox.image_root import ASIDE, KEPT, LAYER, Account, ImageRoot
from obsspec_gym.envs.sandbox.imaged import HOME, ImagedSandbox
from obsspec_gym.envs.sandbox.layers import Layers, Resources
from obsspec_gym.envs.sandbox.persistent import PersistentSandbox
from obsspec_gym.envs.sandbox.pipes import Intake
from obsspec_gym.envs.sandbox.supervised import SupervisedSandbox
from obsspec_gym.errors import InvalidArgumentError, SandboxError, SandboxUnavailableError

logger = logging.getLogger(__name__)

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
            (:mod:`obsspec_gym.envs.sandbox.cgroups`); refused where there can be none. By default that of its files
            and of one process (three times ``disk_mib``, and ``memory_mib``), at most half of this machine's, where
            control groups can be had; elsewhere it is not bounded, as ``obsspec doctor`` says.
        root: An image's tree, as ``obsspec image build`` makes one and
            :func:`obsspec_gym.envs.images.image_tree` names it: the whole file system. Nothing is written to it;
            everything written anywhere is kept in memory and counts for ``disk_mib`` (``/dev/shm``, of the same
            size, does not).
        user: With ``root``, whom the agent's commands run as: a name or a number of the image's ``/etc/passwd``,
            with ``:group`` or without. It may be made by :meth:`provision`. ``root`` may write everywhere.
        workdir: With ``root``, the first working directory, which is made if it is missing; the user's home if
            ``None``.
        env: With ``root``, what the agent's commands find in their environment, besides what they always find.
        frozen_clock: Whether the clock stands still, or at which time (``YYYY-MM-DD HH:MM:SS``, UTC). See
            :mod:`obsspec_gym.envs.sandbox.frozen_clock`.

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
        self._limits = Limits(disk_mib, file_mib, memory_mib, processes, total_mib)
        if root is None and (user, workdir, env or None) != ("agent", None, None):
            raise InvalidArgumentError("user, workdir and env are for sandboxes with an image: give root as well")
        self._frozen_at = read_frozen_clock(frozen_clock)
        super().__init__(None if root is None else ImageRoot(Path(root), user, workdir, disk_mib), env)
        self._options: dict[str, Any] = {
            **asdict(self._limits),
            "root": root,
            "user": user,
            "workdir": workdir,
            "env": self._env,
            "frozen_clock": frozen_clock,
        }

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
            environment = {"LD_PRELOAD": CLOCK, **environment}
        super()._enter(prefix, environment)

    def _twin(self) -> BubblewrapSandbox:
        return BubblewrapSandbox(**self._options)

    def _build(self, resources: Resources) -> Layers:
        if reason := bubblewrap_available():
            raise SandboxUnavailableError(reason)
        if self._image is not None:
            self._image.check(sandbox_uid())
        clock = None if self._frozen_at is None else str(frozen_clock_library(self._frozen_at, sandbox_uid()))
        program, libraries = find_program()
        hidden = concealed(system_directories(), sandbox_uid())
        outer = outer_arguments(program, libraries, self._limits.disk, hidden=hidden, clock=clock)
        group = resources.group = self._limits.group()
        start = (*(group.prefix if group else ()), *_unprivileged(), program, *outer)
        if self._image is not None:
            return _with_image(start, self._limits, clock is not None, self._image)
        return _with_this_machine(start, self._limits, clock is not None)


def bubblewrap_command() -> tuple[str, ...]:
    """The words that start bubblewrap as sandboxes are started here; the last is the program itself."""
    return (*_unprivileged(), find_program()[0])


def sandbox_uid() -> int:
    """Whom sandboxes are started as on this machine."""
    return NOBODY if _unprivileged() else os.geteuid()


def _with_this_machine(start: tuple[str, ...], limits: Limits, clock: bool) -> Layers:
    agent = inner_arguments(clock=clock)
    judge = inner_arguments("--ro-bind", _VERIFIER, _VERIFIER, clock=clock)
    return Layers(
        outer=(*start, "--"),
        prepare=prepare(limits.disk, agent=agent, judge=judge),
        inner=f"{PROGRAM}/bin/bwrap --args 9 9<{ARGUMENTS}/agent --",
        judging=f"{PROGRAM}/bin/bwrap --args 9 9<{ARGUMENTS}/judge --",
        home=HOME,
        verifier=_VERIFIER,
        limits=limits.script(),
        base="/",
        kept=(HOME[1:], "tmp"),
        depth=2,
    )


def _with_image(start: tuple[str, ...], limits: Limits, clock: bool, image: ImageRoot) -> Layers:
    *laid, remount, where = devices(clock=clock)
    last = [remount, where, "--chdir", "/"]
    return Layers(
        outer=(*start, *image.outer(), "--"),
        prepare=f"{prepare(limits.disk)} &&\n{image.prepare(f'{PROGRAM}/bin/bwrap', namespaces(), laid, last)}",
        inner="",
        judging=image.enter("aside"),
        judging_as_built=image.enter("as_built"),
        seal=image.seal(),
        home="/root",
        verifier=ASIDE,
        limits=limits.script(),
        base=LAYER,
        kept=KEPT,
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


@functools.cache
def _probe(prefix: tuple[str, ...]) -> str | None:
    """What goes wrong with both layers, as we use them, started by ``prefix``; None if nothing does. Once for each."""
    program, libraries = find_program()
    inner = [f"{PROGRAM}/bin/bwrap", *inner_arguments(), "--", "true"]
    hidden = concealed(system_directories(), NOBODY if prefix else os.geteuid())
    outer = [*prefix, program, *outer_arguments(program, libraries, str(2**20), hidden=hidden), "--", *inner]
    try:
        done = subprocess.run(outer, stdin=subprocess.DEVNULL, capture_output=True, timeout=20.0, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return None
    return done.stderr.decode("utf-8", "replace").strip().replace("\n", "; ") or f"exit status {done.returncode}"
