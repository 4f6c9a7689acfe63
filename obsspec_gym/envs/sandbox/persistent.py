"""Sandboxes with one persistent shell: how calls follow each other, whatever becomes of the shell.

A sandbox is a supervisor of ours, which never runs what an agent wrote, and at any time at most one shell of the agent
(or of a verifier, which has the sandbox for itself). Kinds of sandbox say how these are started and ended.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Self

from obsspec_gym.envs.sandbox.base import CommandResult
from obsspec_gym.envs.sandbox.checks import check_command, check_environment, check_timeout
from obsspec_gym.envs.sandbox.commands import Command, Streamed
from obsspec_gym.envs.sandbox.files import pack
from obsspec_gym.envs.sandbox.forking import moved
from obsspec_gym.envs.sandbox.layers import Layers, Resources
from obsspec_gym.envs.sandbox.pipes import Intake
from obsspec_gym.envs.sandbox.stream import CommandStream
from obsspec_gym.envs.shell import Shell
from obsspec_gym.errors import ClosedError, SandboxError

WORK_SECONDS = 30.0
"""For a piece of a supervisor's work; a busy machine is slow, not broken."""


class PersistentSandbox(ABC):
    """What all our sandboxes share; see :class:`obsspec_gym.envs.sandbox.base.Sandbox`.

    When the agent's shell ends (``exit``, ``exec``, a kill), everything it had started ends with it, and a new one
    begins in the last directory. An exception out of :meth:`run` (Ctrl-C, say) leaves the sandbox usable: the shell
    is replaced at the next call. :meth:`close` may be called from any thread at any time.
    """

    def __init__(self, resources: Resources | None = None) -> None:
        self._resources = resources or Resources()
        self._finalizer = weakref.finalize(self, self._resources.release)
        self._lock = threading.RLock()
        self._layers: Layers | None = None
        self._shell: Shell | None = None
        self._cwd = ""
        self._closed = threading.Event()
        self._busy = False
        self._entered = False
        self._streamed: Command | None = None
        self._as_built = False

    @abstractmethod
    def _build(self, resources: Resources) -> Layers:
        """How to build it; called once, at the start. What it makes on this machine it adds to ``resources``.

        Raises:
            SandboxUnavailableError: If this machine cannot provide it.
        """

    @property
    @abstractmethod
    def workdir(self) -> str:
        """The agent's home and first working directory, as seen inside."""

    @abstractmethod
    def _twin(self) -> Self:
        """Another one with the same options, not started."""

    @abstractmethod
    def _start_supervisor(self, layers: Layers, intake: Intake | None) -> None:
        """Starts the supervisor.

        Args:
            layers: What :meth:`_build` returned.
            intake: For a fork, a pipe that the supervisor may inherit for :meth:`_copy`.
        """

    @abstractmethod
    def _supervise(self, command: str, timeout: float = WORK_SECONDS) -> str:
        """Has the supervisor run a command of ours; returns what it printed.

        Raises:
            SandboxError: If the command fails or the supervisor is gone.
        """

    @abstractmethod
    def _copy(self, origin: PersistentSandbox, intake: Intake) -> None:
        """Takes over the files that another one of this kind keeps; closes the intake."""

    @abstractmethod
    def _lay(self, archive: bytes, where: str) -> None:
        """Unpacks a compressed tar in a directory, as the supervisor sees it."""

    @abstractmethod
    def _enter(self, prefix: str, environment: Mapping[str, str]) -> None:
        """Starts a shell in the inner layer, in the last directory."""

    @abstractmethod
    def _leave(self) -> None:
        """Ends the shell and everything it started."""

    def start(self) -> None:
        """Starts it. Idempotent.

        Raises:
            SandboxUnavailableError: If this machine cannot provide it; says why and what can be done.
        """
        self._start(None)

    def fork(self) -> Self:
        """A started copy of its files and directory; see :meth:`obsspec_gym.envs.sandbox.base.Sandbox.fork`."""
        with self._alone():
            self._started()
            twin = self._twin()
            try:
                twin._start(self)
            except BaseException:
                twin.close()
                raise
            return twin

    def _start(self, origin: PersistentSandbox | None) -> None:
        """Starts it, as a copy of another one where that is given."""
        with self._alone():
            if self._layers is not None:
                return
            try:
                layers = self._build(self._resources)
                intake = self._resources.pipes.intake() if origin else None
                self._start_supervisor(layers, intake)
                self._supervise(layers.prepare)
                self._layers = layers
                self._cwd = "" if layers.provisioned else layers.home
                if origin and intake:
                    self._copy(origin, intake)
                    self._cwd = moved(origin._cwd, origin._started().home, layers.home)
                if not layers.provisioned:
                    self._enter_agent()
            except BaseException:
                self._resources.release()
                if not self._closed.is_set():  # or else whoever closed it is to blame
                    self._layers = None
                    self._closed.set()
                raise

    def write(self, files: Mapping[str, str | bytes]) -> None:
        """Lays files: path relative to :attr:`workdir` -> content. Contents beginning with ``#!`` are executable."""
        archive = pack(files)
        with self._alone():
            self._lay(archive, self._destination())

    def run(self, command: str, timeout: float = 30.0) -> CommandResult:
        """Runs a command in the persistent shell; see :meth:`obsspec_gym.envs.sandbox.base.Sandbox.run`."""
        check_command(command)
        check_timeout(timeout)
        with self._alone():
            return self._finish(self._launch(command, timeout))

    def stream(self, command: str, timeout: float = 30.0) -> CommandStream:
        """Starts a command whose output can be read; see :meth:`obsspec_gym.envs.sandbox.base.Sandbox.stream`."""
        check_command(command)
        check_timeout(timeout)
        with self._alone():
            launched = self._streamed = self._launch(command, timeout)
        return CommandStream(Streamed(launched, self._read, self._stop, self._abandon))

    def verify(
        self,
        script: str,
        files: Mapping[str, str | bytes],
        env: Mapping[str, str],
        timeout: float = 60.0,
        *,
        as_built: bool = False,
    ) -> CommandResult:
        """Runs a script in a clean process of its own; see :meth:`obsspec_gym.envs.sandbox.base.Sandbox.verify`."""
        with self._alone():
            self._as_built = as_built
            try:
                return self._run_aside(script, files, env, "VERIFIER", timeout)
            finally:
                self._as_built = False

    def close(self) -> None:
        """Ends every process in it and removes everything it left. Idempotent, from any thread."""
        self._closed.set()
        if not self._lock.acquire(blocking=False):
            # Another thread is in a call: with its processes gone, that call ends.
            self._resources.kill()
            self._lock.acquire()
        try:
            self._shell = self._streamed = None
            self._resources.release()
            self._finalizer.detach()
        finally:
            self._lock.release()

    @contextlib.contextmanager
    def _alone(self, streamed: Command | None = None) -> Iterator[None]:
        """One call at a time, with the errors that the contract promises.

        A command that is read from is stopped, unless the call belongs to it.
        """
        with self._lock:
            if self._closed.is_set():
                raise ClosedError("the sandbox is closed")
            try:
                if streamed is None and self._streamed is not None:
                    self._stop(self._streamed)
                yield
            except (OSError, SandboxError) as error:
                if self._closed.is_set() and self._layers is not None:
                    raise ClosedError("the sandbox was closed while it was in use") from error
                if isinstance(error, OSError):
                    raise SandboxError(f"the sandbox broke: {error}") from error
                raise

    def _started(self) -> Layers:
        if self._layers is None:
            raise SandboxError("the sandbox is not started: call start() first")
        return self._layers

    def _lost(self) -> bool:
        """Whether the shell is gone: it ended meanwhile, a verifier ran, or an exception interrupted a command."""
        session = self._resources.session
        return self._busy or self._shell is None or session is None or session.ended

    def _launch(self, command: str, timeout: float) -> Command:
        """Starts an agent's command, in a new shell if the last one is lost."""
        self._started()
        lost, entered = self._lost(), self._entered
        if lost:
            self._leave()
            self._enter_agent()
        return self._send(command, timeout, restarted=lost and entered)

    def _finish(self, command: Command) -> CommandResult:
        """Waits for the end of an agent's command; there is a shell for the next one then."""
        result = self._conclude(command)
        if self._shell is None:
            self._enter_agent()
        return result

    def _send(self, command: str, timeout: float, *, restarted: bool = False) -> Command:
        assert self._shell is not None
        began = time.monotonic()
        self._busy = True
        return Command(self._shell.execute(command, timeout), began, restarted)

    def _conclude(self, command: Command) -> CommandResult:
        """Waits for the end of a command, and clears away the shell if it ended as well."""
        done = command.execution.finish()
        self._busy = False
        seconds = time.monotonic() - command.began
        self._cwd = done.cwd or self._cwd
        if done.cwd is None:
            self._leave()
        command.result = CommandResult(
            output=done.output,
            output_bytes=done.output_bytes,
            exit_code=done.exit_code,
            cwd=self._cwd,
            seconds=seconds,
            timed_out=done.timed_out,
            restarted=command.restarted or done.cwd is None,
        )
        return command.result

    def _read(self, command: Command) -> bytes | None:
        """What a streamed command printed next; None when it has ended."""
        if command.result is not None:
            return None
        with self._alone(command):
            self._require(command)
            try:
                piece = next(command.execution, None)
            except BaseException:
                self._streamed = None  # where the shell is now, nobody knows: the next call replaces it
                raise
            if piece is None:
                self._stop(command)
            return piece

    def _stop(self, command: Command) -> None:
        """Waits for the end of a streamed command, which is stopped if it still runs."""
        if command.result is None:
            with self._alone(command):
                self._require(command)
                self._streamed = None
                command.execution.expire()
                self._finish(command)

    def _require(self, command: Command) -> None:
        if self._streamed is not command:
            raise SandboxError("the command was interrupted before its end")

    def _abandon(self, command: Command) -> None:
        """Stops a command that nobody can read from any more; one that another call has stopped, or will, is left."""
        if self._lock.acquire(blocking=False):
            try:
                if self._streamed is command and not self._closed.is_set():
                    with contextlib.suppress(SandboxError, ClosedError):
                        self._stop(command)
            finally:
                self._lock.release()

    def _run_aside(
        self,
        script: str,
        files: Mapping[str, str | bytes],
        env: Mapping[str, str],
        variable: str,
        timeout: float,
        cwd: str | None = None,
    ) -> CommandResult:
        """Runs a script in a clean process of its own, with files under ``$variable`` that nobody else ever sees."""
        check_environment(env)
        check_timeout(timeout)
        archive = pack({f"files/{path}": content for path, content in files.items()} | {"script": script})
        with self._alone():
            layers = self._started()
            # Under a name that nobody can have foreseen: no link that an agent left leads there.
            where = f"{layers.verifier}/{secrets.token_hex(16)}"
            self._leave()
            before, self._cwd = self._cwd, cwd or self.workdir
            try:
                self._supervise(f"rm -rf {layers.verifier}/* && mkdir -p {where} && chmod 711 {layers.verifier}")
                self._lay(archive, where)
                judging = (self._as_built and layers.judging_as_built) or layers.judging
                self._enter(judging, {**env, variable: f"{where}/files"})
                return self._conclude(self._send(f"\\command bash {where}/script", timeout))
            finally:
                self._leave()
                self._cwd = before
                self._supervise(f"rm -rf {layers.verifier}")

    def _enter_agent(self) -> None:
        """Starts the agent's shell, in the last directory."""
        self._enter(self._started().inner, {})
        self._entered = True

    def _destination(self) -> str:
        """Where :meth:`write` lays files, as the supervisor sees it."""
        return self._started().home
