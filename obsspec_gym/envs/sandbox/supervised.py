"""Sandboxes whose shells are started, fed and replaced by a small supervisor inside.

The supervisor is a bash of ours in the outer layer of the sandbox. It never runs what an agent wrote. It lays files,
starts the agent's shell in the inner layer, starts it anew when it ended, and starts the verifier's. It ends when its
script pipe closes, so nothing outlives this process however this process ends.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import io
import os
import select
import shlex
import shutil
import subprocess
import tarfile
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from obsspec_gym.envs.sandbox.base import CommandResult
from obsspec_gym.envs.sandbox.sessions import Session, Supervisor
from obsspec_gym.envs.shell import COMMAND, Shell, ShellPipes
from obsspec_gym.errors import ClosedError, InvalidArgumentError, SandboxError

MAX_COMMAND_BYTES = 1_000_000
MAX_VARIABLE_BYTES = 100_000
EPOCH = 1_704_067_200
"""Modification time of every laid file (2024-01-01 00:00 UTC), so that listings are reproducible."""

ENVIRONMENT: Mapping[str, str] = {
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "LOGNAME": "agent",
    "PAGER": "cat",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "SHELL": "/bin/bash",
    "TERM": "dumb",
    "TZ": "UTC",
    "USER": "agent",
}
"""What every command finds in its environment, besides HOME; nothing of ours is passed on."""

_START_SECONDS = 20.0
_LAY_SECONDS = 120.0
_LOWEST_PASSED_FD = 300  # clear of the descriptors that the shells use themselves


@dataclass(frozen=True, slots=True)
class Layers:
    """How one sandbox is built.

    Attributes:
        outer: Command prefix that starts the supervisor.
        prepare: Bash that the supervisor runs first.
        inner: Command prefix (bash words) that starts a shell for agents.
        judging: The same for the verifier.
        home: HOME and first working directory, as seen inside.
        verifier: Directory for the verifier's files, seen by the supervisor and under ``judging`` only.
        limits: Bash that sets resource limits for inner shells.
        depth: How many processes ``inner`` puts above the shell; 0 means that it has no namespace of its own.
        directory: A directory of this machine to remove at the end.
    """

    outer: tuple[str, ...]
    prepare: str
    inner: str
    judging: str
    home: str
    verifier: str
    limits: str
    depth: int = 0
    directory: str | None = None


@dataclass
class _Resources:
    """Everything to release; knows nothing of the sandbox, so that a finaliser can hold it."""

    process: subprocess.Popen[bytes] | None = None
    supervisor: Supervisor | None = None
    session: Session | None = None
    fds: list[int] = field(default_factory=list)
    directory: str | None = None

    def release(self) -> None:
        if self.session is not None:
            self.session.end_processes()
            self.session.close()
            self.session = None
        while self.fds:
            os.close(self.fds.pop())
        if self.process is not None:
            # Its script pipe is closed: it tidies up and ends by itself, quickly.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(2.0)
            if self.supervisor is not None:
                self.supervisor.end()
                self.supervisor.close()
                self.supervisor = None
            self.process.kill()
            self.process.wait()
            self.process = None
        if self.directory is not None:
            shutil.rmtree(self.directory, ignore_errors=True)
            self.directory = None


class SupervisedSandbox(ABC):
    """What bubblewrap and local sandboxes share; see :class:`obsspec_gym.envs.sandbox.base.Sandbox`.

    When the agent's shell ends (``exit``, ``exec``, a kill), everything it had started ends with it, and a new one
    begins in the last directory. An exception out of :meth:`run` (Ctrl-C, say) leaves the sandbox usable: the shell
    is replaced at the next call.
    """

    def __init__(self) -> None:
        self._resources = _Resources()
        self._finalizer = weakref.finalize(self, self._resources.release)
        self._layers: Layers | None = None
        self._supervisor: Shell | None = None
        self._shell: Shell | None = None
        self._cwd = ""
        self._closed = False
        self._busy = False

    @abstractmethod
    def _build(self) -> Layers:
        """How to build it; called once, at the start.

        Raises:
            SandboxUnavailableError: If this machine cannot provide it.
        """

    @property
    @abstractmethod
    def workdir(self) -> str:
        """The agent's home and first working directory, as seen inside."""

    def start(self) -> None:
        """Starts it. Idempotent."""
        if self._closed:
            raise ClosedError("the sandbox is closed")
        if self._layers is not None:
            return
        try:
            layers = self._build()
            self._resources.directory = layers.directory
            self._start_supervisor(layers)
            self._supervise(layers.prepare, _START_SECONDS)
            self._layers = layers
            self._cwd = layers.home
            self._enter(layers.inner, {})
        except BaseException:
            self.close()
            raise

    def write(self, files: Mapping[str, str | bytes]) -> None:
        """Lays files: path relative to :attr:`workdir` -> content. Contents beginning with ``#!`` are executable."""
        layers = self._started()
        self._lay(pack(files), layers.home)

    def run(self, command: str, timeout: float = 30.0) -> CommandResult:
        """Runs a command in the persistent shell; see :meth:`obsspec_gym.envs.sandbox.base.Sandbox.run`."""
        check_command(command)
        if not timeout > 0:
            raise InvalidArgumentError(f"timeout must be > 0 seconds, got {timeout}")
        layers = self._started()
        lost = self._lost()
        if lost:
            self._leave()
            self._enter(layers.inner, {})
        result = self._run(command, timeout)
        if result.restarted:
            self._enter(layers.inner, {})
        return replace(result, restarted=True) if lost else result

    def verify(
        self, script: str, files: Mapping[str, str | bytes], env: Mapping[str, str], timeout: float = 60.0
    ) -> CommandResult:
        """Runs a script in a clean process of its own; see :meth:`obsspec_gym.envs.sandbox.base.Sandbox.verify`."""
        layers = self._started()
        check_environment(env)
        archive = pack({f"files/{path}": content for path, content in files.items()} | {"script": script})
        self._leave()
        cwd, self._cwd = self._cwd, layers.home
        where = layers.verifier
        try:
            self._supervise(f"rm -rf {where} && mkdir -p -m 700 {where}/files", _START_SECONDS)
            self._lay(archive, where)
            self._enter(layers.judging, {**env, "VERIFIER": f"{where}/files"})
            result = self._run(f"\\command bash {where}/script", timeout)
        finally:
            self._leave()
            self._cwd = cwd
            self._supervise(f"rm -rf {where}", _START_SECONDS)
        return result

    def close(self) -> None:
        """Ends every process in it and removes everything it left. Idempotent."""
        self._closed = True
        self._shell = self._supervisor = None
        self._resources.release()
        self._finalizer.detach()

    def _started(self) -> Layers:
        if self._closed:
            raise ClosedError("the sandbox is closed")
        if self._layers is None:
            raise SandboxError("the sandbox is not started: call start() first")
        return self._layers

    def _lost(self) -> bool:
        """Whether the shell is gone: it ended meanwhile, a verifier ran, or an exception interrupted a command."""
        session = self._resources.session
        return self._busy or self._shell is None or session is None or session.ended

    def _run(self, command: str, timeout: float) -> CommandResult:
        assert self._shell is not None
        begin = time.monotonic()
        self._busy = True
        done = self._shell.run(command, timeout)
        self._busy = False
        seconds = time.monotonic() - begin
        self._cwd = done.cwd or self._cwd
        if done.cwd is None:
            self._leave()
        return CommandResult(
            output=done.output,
            output_bytes=done.output_bytes,
            exit_code=done.exit_code,
            cwd=self._cwd,
            seconds=seconds,
            timed_out=done.timed_out,
            restarted=done.cwd is None,
        )

    def _start_supervisor(self, layers: Layers) -> None:
        """Starts the outer layer; the pipes of the inner shells pass through it."""
        fds = self._resources.fds
        ours, theirs = _pipes(fds)
        self._agent_pipes, low = _pipes(fds)
        passed = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _LOWEST_PASSED_FD) for fd in low]
        fds.extend(passed)
        self._passed = (passed[0], passed[1], passed[2])
        process = subprocess.Popen(
            [*layers.outer, *COMMAND],
            stdin=theirs[0],
            stdout=theirs[1],
            stderr=theirs[2],
            pass_fds=passed,
            env={"PATH": ENVIRONMENT["PATH"], "LC_ALL": ENVIRONMENT["LC_ALL"]},
            start_new_session=True,
        )
        self._resources.process = process
        self._resources.supervisor = Supervisor(process.pid)
        self._supervisor = Shell(ours, self._resources.supervisor)
        for fd in (*theirs, *low, passed[1], passed[2]):
            fds.remove(fd)
            os.close(fd)
        if self._supervisor.open("/", _START_SECONDS) is None:
            raise SandboxError(f"the sandbox did not start: {self._supervisor.said}")
        self._resources.supervisor.locate(int(self._supervise("echo $$", _START_SECONDS)))

    def _supervise(self, command: str, timeout: float) -> str:
        """Has the supervisor run a command of ours; returns what it printed."""
        if self._supervisor is None or self._supervisor.ended:
            raise SandboxError("the sandbox's supervisor ended")
        done = self._supervisor.run(command, timeout)
        text = done.output.decode("utf-8", "replace").strip()
        if done.exit_code != 0:
            why = "it took too long" if done.timed_out else text or f"exit status {done.exit_code}"
            raise SandboxError(f"the sandbox's supervisor could not do its work: {why}")
        return text

    def _enter(self, prefix: str, environment: Mapping[str, str]) -> None:
        """Starts a shell in the inner layer, in the last directory."""
        assert self._layers is not None
        for fd in (self._passed[0], self._agent_pipes.output, self._agent_pipes.status):
            _drain(fd)
        variables = {**ENVIRONMENT, "HOME": self._layers.home, "PWD": self._layers.home, **environment}
        words = " ".join(shlex.quote(f"{name}={value}") for name, value in sorted(variables.items()))
        script, output, status = self._passed
        redirections = f"<&{script} >&{output} 2>&{status} " + " ".join(f"{fd}>&-" for fd in self._passed)
        # The supervisor's background jobs ignore SIGINT; the agent's programs must not.
        command = f"{prefix} env -i --default-signal=INT,QUIT {words} {' '.join(COMMAND)}"
        start = f"({self._layers.limits}; exec {command}) {redirections} &\necho $!"
        session = Session(
            int(self._supervise(start, _START_SECONDS).split()[-1]),
            self._layers.depth,
            self._reap,
            b"" if self._layers.depth else f"HOME={self._layers.home}".encode(),
        )
        self._resources.session = session
        self._shell = Shell(self._agent_pipes, session)
        cwd = self._shell.open(self._cwd, _START_SECONDS)
        if cwd is None:
            raise SandboxError(f"the sandbox's shell did not start: {self._shell.said}")
        session.settle()
        self._cwd = cwd
        self._busy = False

    def _leave(self) -> None:
        """Ends the shell and everything it started."""
        session, self._resources.session, self._shell = self._resources.session, None, None
        if session is not None:
            session.end_processes()
            session.close()
        if self._resources.supervisor is not None:
            self._resources.supervisor.sweep()  # an exception may have come before a session was known

    def _reap(self, pid: int) -> int:
        """The exit status of a process that the supervisor started and that has ended."""
        return int(self._supervise(f"wait {pid}; echo $?", _START_SECONDS).split()[-1])

    def _lay(self, archive: bytes, where: str) -> None:
        text = base64.b64encode(archive).decode()
        self._supervise(f"printf %s {text} | base64 -d | tar -xzp --no-same-owner -C {where}", _LAY_SECONDS)


def check_command(command: str) -> None:
    """Refuses what no shell can be sent.

    Raises:
        InvalidArgumentError: Not a ``str``, NUL or a lone surrogate in it, or more than 1,000,000 bytes.
    """
    if not isinstance(command, str):
        raise InvalidArgumentError(f"a command must be a str, got {type(command).__name__}")
    if "\0" in command:
        raise InvalidArgumentError(f"a command must not contain NUL, found one at character {command.index(chr(0))}")
    try:
        size = len(command.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"a command must be valid Unicode: {error}") from None
    if size > MAX_COMMAND_BYTES:
        raise InvalidArgumentError(f"a command must have at most {MAX_COMMAND_BYTES:,} bytes, got {size:,}")


def check_environment(env: Mapping[str, str]) -> None:
    """Refuses variables that a process cannot be started with.

    Raises:
        InvalidArgumentError: A name that is not an identifier, NUL in a value, or more than 100,000 bytes.
    """
    for name, value in env.items():
        if not (name.isascii() and name.isidentifier()):
            raise InvalidArgumentError(f"a variable's name must be an identifier, got {name!r}")
        if "\0" in value or len(value.encode("utf-8", "replace")) > MAX_VARIABLE_BYTES:
            raise InvalidArgumentError(f"{name} must have no NUL and at most {MAX_VARIABLE_BYTES:,} bytes")


def pack(files: Mapping[str, str | bytes]) -> bytes:
    """A compressed tar of files, the same bytes for the same files.

    Raises:
        InvalidArgumentError: For a path that is absolute, empty or leads outside.
    """
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz", compresslevel=1) as tar:
        directories = {parent for path in files for parent in _inside(path).parents if parent.name}
        for directory in sorted(directories):
            tar.addfile(_entry(str(directory), 0o755, tarfile.DIRTYPE))
        for path, content in sorted(files.items()):
            data = content.encode("utf-8") if isinstance(content, str) else content
            entry = _entry(str(_inside(path)), 0o755 if data.startswith(b"#!") else 0o644)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return archive.getvalue()


def _inside(path: str) -> PurePosixPath:
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or not pure.name or "\0" in path:
        raise InvalidArgumentError(f"a file's path must be relative and stay inside, got {path!r}")
    return pure


def _entry(name: str, mode: int, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.mode, entry.type, entry.mtime = mode, kind, EPOCH
    return entry


def _pipes(owned: list[int]) -> tuple[ShellPipes, tuple[int, int, int]]:
    """Three pipes for a shell: our ends, and its script, output and status ends."""
    ends: list[int] = []
    for _ in range(3):
        ends += os.pipe()
        owned += ends[-2:]
    script_r, script_w, output_r, output_w, status_r, status_w = ends
    for fd in (script_w, output_r, status_r):
        os.set_blocking(fd, False)
    return ShellPipes(script_w, output_r, status_r), (script_r, output_w, status_w)


def _drain(fd: int) -> None:
    """Throws away what is in a pipe that nobody else reads or writes any more."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    while any(event & select.POLLIN for _, event in poll.poll(0)):
        if not os.read(fd, 65_536):
            return
