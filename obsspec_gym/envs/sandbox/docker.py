"""Sandboxes that are Docker containers, on this machine or on another.

One container for each: no network, bounded memory, processes and (where told) CPU, no capability for the agent,
no-new-privileges, Docker's seccomp filter, a root file system that is read-only, home and ``/tmp`` in memory and
bounded in size. The container's first process is a supervisor of ours, a bash that reads from one open connection and
runs as root; it takes up processes whose parents are gone, which is what an init is for. Each agent's shell is a
process that the daemon starts in the container as another user, over a connection of its own; nobody but the
supervisor may signal across users (``CAP_KILL``) and copy files whose permissions an agent has taken from itself.

When the connection to the supervisor ends, because the sandbox is closed or this process dies, the supervisor ends,
with it the container, which the daemon then removes. What is left all the same (the daemon was killed, say) is removed
by the next process that starts a sandbox; see :mod:`obsspec_gym.envs.sandbox.reaper`.

The verifier runs with the image's programs. With ``user="root"`` an agent may have changed these, as on any machine
where it is root; as any other user it cannot.
"""

from __future__ import annotations

import contextlib
import functools
import shlex
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from obsspec_gym.envs.sandbox.base import CommandResult
from obsspec_gym.envs.sandbox.commands import Command
from obsspec_gym.envs.sandbox.containers import PREPARE, ContainerSession, exit_status
from obsspec_gym.envs.sandbox.files import EPOCH
from obsspec_gym.envs.sandbox.framed_pipes import FramedPipes, pass_on
from obsspec_gym.envs.sandbox.holding import Container, Limits
from obsspec_gym.envs.sandbox.image_root import Account, ImageRoot
from obsspec_gym.envs.sandbox.imaged import HOME, ImagedSandbox
from obsspec_gym.envs.sandbox.layers import ENVIRONMENT, Layers, Resources
from obsspec_gym.envs.sandbox.persistent import WORK_SECONDS, PersistentSandbox
from obsspec_gym.envs.sandbox.pipes import Intake
from obsspec_gym.envs.shell import COMMAND, Shell
from obsspec_gym.errors import InvalidArgumentError, SandboxError, SandboxUnavailableError

_AGENT = "1000:1000"
_ROOT = "0:0"
_VERIFIER = "/verifier"
_LAY_SECONDS = 120.0
_ASIDE_SECONDS = 10.0  # in which a verifier can be entered, fed and cleared away, whatever its timeout
_AGENT_ROLE, _ASIDE_ROLE = "agent", "aside"
_PACK = (
    "tar --format=posix --pax-option=delete=atime,delete=ctime --sparse --numeric-owner -cf - -C / -- home/agent tmp"
)
_UNPACK = "tar --numeric-owner --same-owner -xpf - -C /"
_NO_CAPABILITIES = "setpriv --bounding-set=-all --inh-caps=-all --ambient-caps=-all"


class DockerSandbox(ImagedSandbox):
    """A sandbox that is a Docker container.

    The image must have bash, env, tar, gzip, head, chmod, mkdir, rm and touch (and setpriv, for agents that are root);
    it is never pulled.

    Args:
        image: Name or id of the image; by default what ``OBSSPEC_DOCKER_IMAGE`` names, or else the base image, which
            ``obsspec image build`` makes and the daemon then is given.
        disk_mib: Size of the home directory, in MiB; ``/tmp`` and ``/dev/shm`` have the same. All of it is memory.
        file_mib: Size of the largest file, in MiB.
        memory_mib: Memory of all processes and files together, in MiB; more ends a process.
        processes: Processes at a time.
        cpus: How many CPUs they may use at most; ``None`` for all.
        user: Whom the agent's commands run as, by the image's ``/etc/passwd``. By default user 1000, in a home that
            is empty, on a file system that is read-only. With another user the whole file system is the container's,
            as the image has it, and can be written to by whoever may; ``disk_mib`` then bounds it only where Docker's
            storage does (overlay2 on XFS with project quotas). ``root`` may write everywhere, without a capability.
        workdir: With ``user``, the first working directory, which is made if it is missing; the user's home if
            ``None``.
        env: With ``user``, what the agent's commands find in their environment, besides what they always find.

    Example:
        >>> sandbox = DockerSandbox(image="obsspec-base")  # doctest: +SKIP
        >>> sandbox.start()  # doctest: +SKIP
        >>> sandbox.run("pwd").output  # doctest: +SKIP
        b'/home/agent\\n'
    """

    needs = "user"

    def __init__(
        self,
        *,
        image: str | None = None,
        disk_mib: int = 256,
        file_mib: int = 256,
        memory_mib: int = 2_048,
        processes: int = 512,
        cpus: float | None = None,
        user: str | None = None,
        workdir: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        limits = Limits(disk_mib, file_mib, memory_mib, processes, cpus)
        if user is None and (workdir, env or None) != (None, None):
            raise InvalidArgumentError("workdir and env are for sandboxes with a user of the image: give user as well")
        self._container = Container()
        super().__init__(None if user is None else ImageRoot(Path("/"), user, workdir, disk_mib), env, self._container)
        self._options: dict[str, Any] = {
            "image": image,
            **asdict(limits),
            "user": user,
            "workdir": workdir,
            "env": self._env,
        }
        self._limits = limits

    @property
    def container(self) -> str:
        """The name of its container, for Docker's own tools; empty before the start."""
        return self._container.name

    def _twin(self) -> Self:
        return type(self)(**self._options)

    def _build(self, resources: Resources) -> Layers:
        prepare = [PREPARE]
        if self._image is None:
            prepare.append(f"touch -d @{EPOCH} /tmp")
        elif self._image.workdir:
            prepare.append(f"mkdir -p {shlex.quote(self._image.workdir)}")
        return Layers(
            outer=(),
            prepare="\n".join(prepare),
            inner=_AGENT_ROLE,
            judging=_ASIDE_ROLE,
            home=HOME if self._image is None else "/root",
            verifier=f"{_VERIFIER}/files",
            limits=f"ulimit -c 0 -n 1024 -f {self._limits.file_mib * 1024}",
            base="/",
            kept=(HOME[1:], "tmp"),
            provisioned=self._image is not None,
        )

    def fork(self) -> Self:
        """A copy in a container of its own; see :meth:`obsspec_gym.envs.sandbox.base.Sandbox.fork`."""
        if self._image is not None:
            with self._alone():
                raise SandboxUnavailableError(
                    "a Docker sandbox with a user of the image cannot be forked: its files are everywhere"
                )
        return super().fork()

    def _start_supervisor(self, layers: Layers, intake: Intake | None) -> None:
        self._container.start(self._options["image"], self._limits, home=None if self._image else HOME)

    def _supervise(self, command: str, timeout: float = WORK_SECONDS) -> str:
        return self._container.require().ask(command, timeout)

    @contextlib.contextmanager
    def _alone(self, streamed: Command | None = None) -> Iterator[None]:
        with super()._alone(streamed):
            patience = self._container.patience
            if streamed is None:
                patience.end()
            try:
                yield
            except (SandboxError, OSError):
                raise  # what is to be cleared away then is bounded by what is left of the call
            except BaseException:
                patience.end()
                raise

    def _launch(self, command: str, timeout: float) -> Command:
        self._container.patience.begin(timeout)
        return super()._launch(command, timeout)

    def _send(self, command: str, timeout: float, *, restarted: bool = False) -> Command:
        self._container.patience.extend(timeout)
        return super()._send(command, timeout, restarted=restarted)

    def _finish(self, command: Command) -> CommandResult:
        """Waits for the end of a command; a new shell is started now only where the command has left time for that."""
        result = self._conclude(command)
        if self._shell is None:
            if self._container.patience.left() > 0:
                self._enter_agent()
            else:
                self._entered = False  # the next call starts one, and does not tell of it again
        self._container.patience.end()
        return result

    def _run_aside(
        self,
        script: str,
        files: Mapping[str, str | bytes],
        env: Mapping[str, str],
        variable: str,
        timeout: float,
        cwd: str | None = None,
    ) -> CommandResult:
        self._container.patience.begin(max(timeout, _ASIDE_SECONDS))
        result = super()._run_aside(script, files, env, variable, timeout, cwd)
        self._container.patience.end()
        return result

    def _destination(self) -> str:
        if self._image is not None:
            self._known(self._image)
        return self.workdir

    def _agent_prefix(self, image: ImageRoot, account: Account) -> str:
        return _AGENT_ROLE

    def _accounts(self, image: ImageRoot) -> str:
        return image.lookup("")

    def _user(self, role: str) -> str:
        """Whom the daemon starts a process as."""
        if self._image is None:
            return _AGENT
        return _ROOT if role == _ASIDE_ROLE or self._account is None else f"{self._account.uid}:{self._account.gid}"

    def _enter(self, prefix: str, environment: Mapping[str, str]) -> None:
        """Starts a shell beside the supervisor, in the last directory."""
        layers = self._started()
        self._supervise(f"chmod {'755' if prefix == _ASIDE_ROLE else '700'} {_VERIFIER}")
        variables = {**ENVIRONMENT, "HOME": layers.home, "PWD": layers.home, **environment}
        words = [f"{name}={value}" for name, value in sorted(variables.items())]
        user = self._user(prefix)
        bare = _NO_CAPABILITIES if user.startswith("0:") and prefix == _AGENT_ROLE else ""
        start = f'cd / && {layers.limits} && exec {bare} env -i "$@"'
        pipes, status = self._execute(user, start, [*words, *COMMAND])
        patience = self._container.patience
        session = ContainerSession(self._container.require(), pipes, status, patience)
        self._resources.session = session
        pipes.send(b"\n", time.monotonic() + patience.seconds(WORK_SECONDS))
        self._shell = Shell(pipes, session)
        cwd = self._shell.open(self._cwd, patience.seconds(WORK_SECONDS))
        if cwd is None:
            raise SandboxError(f"the sandbox's shell did not start: {self._shell.said}")
        session.settle()
        self._cwd = cwd
        self._busy = False

    def _leave(self) -> None:
        """Ends the shell and everything it started."""
        session, self._shell = self._resources.session, None
        # Also without one: an exception may have come before it was known.
        self._container.require().sweep()
        if session is not None:
            session.close()
            self._resources.session = None

    def _lay(self, archive: bytes, where: str) -> None:
        user = _ROOT if where.startswith(_VERIFIER) else self._user(_AGENT_ROLE)
        script = 'head -c "$2" | tar -xzpo -C "$1"'
        pipes, status = self._execute(user, script, [where, str(len(archive))])
        try:
            seconds = self._container.patience.seconds(_LAY_SECONDS)
            pipes.send(b"\n" + archive, time.monotonic() + seconds)
            failed = exit_status(pipes, status, seconds)
            if failed:
                said = b" ".join(pipes.receive(set())).decode("utf-8", "replace").strip().replace("\n", "; ")
                raise SandboxError(f"files could not be laid in {where}: {said or f'exit status {failed}'}")
        finally:
            pipes.close()

    def _copy(self, origin: PersistentSandbox, intake: Intake) -> None:
        """Takes over home and ``/tmp``: an archive from container to container, through this process."""
        intake.pipes.close(intake.ours, intake.theirs)  # for supervisors of this machine
        assert isinstance(origin, DockerSandbox)
        packing, packed = origin._execute(_ROOT, _PACK, [])
        try:
            unpacking, unpacked = self._execute(_ROOT, _UNPACK, [])
            try:
                copied = pass_on(packing, unpacking, time.monotonic() + _LAY_SECONDS)
                for pipes, status in ((packing, packed), (unpacking, unpacked)):
                    # 1: a file changed, or went, while it was read.
                    if exit_status(pipes, status, WORK_SECONDS) > (1 if pipes is packing else 0):
                        said = copied if pipes is packing else b" ".join(pipes.receive(set()))
                        why = said.decode("utf-8", "replace").strip().replace("\n", "; ")[:500]
                        raise SandboxError(f"the sandbox's files could not be copied: {why}")
            finally:
                unpacking.close()
        finally:
            packing.close()

    def _execute(self, user: str, script: str, arguments: list[str]) -> tuple[FramedPipes, Any]:
        """Starts a process; it says nothing before it has read a line."""
        command = ["bash", "--noprofile", "--norc", "-c", f"read -r; {script}", "bash", *arguments]
        pipes, name = self._container.execute(user, command)
        return pipes, functools.partial(self._container.status, name)
