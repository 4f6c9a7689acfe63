"""Sandboxes whose shells are started, fed and replaced by a small supervisor inside.

The supervisor is a bash of ours in the outer layer of the sandbox. It never runs what an agent wrote. It lays files,
starts the agent's shell in the inner layer, starts it anew when it ended, and starts the verifier's. It ends when its
script pipe closes, so nothing outlives this process however this process ends.
"""

from __future__ import annotations

import base64
import functools
import shlex
from collections.abc import Mapping

from obsspec_gym.envs.sandbox.forking import copy_files
from obsspec_gym.envs.sandbox.layers import ENVIRONMENT, OWN_HOME, Layers, Resources
from obsspec_gym.envs.sandbox.persistent import WORK_SECONDS, PersistentSandbox
from obsspec_gym.envs.sandbox.pipes import Intake, drain
from obsspec_gym.envs.sandbox.sessions import Session, Supervisor
from obsspec_gym.envs.shell import COMMAND, Shell
from obsspec_gym.errors import SandboxError

_LAY_SECONDS = 120.0


class SupervisedSandbox(PersistentSandbox):
    """What bubblewrap and local sandboxes share: processes of this machine, and pipes to them."""

    def __init__(self, resources: Resources | None = None) -> None:
        super().__init__(resources)
        self._supervisor: Shell | None = None

    def close(self) -> None:
        """Ends every process in it and removes everything it left. Idempotent, from any thread."""
        super().close()
        self._supervisor = None

    def _start_supervisor(self, layers: Layers, intake: Intake | None) -> None:
        """Starts the outer layer; the pipes of the inner shells pass through it."""
        pipes = self._resources.pipes
        ours, theirs = pipes.shell()
        self._agent_pipes, self._passed = pipes.shell(passed=True)
        inherited = (*self._passed, intake.theirs) if intake else self._passed
        process = self._resources.launch(
            [*layers.outer, *COMMAND],
            stdin=theirs[0],
            stdout=theirs[1],
            stderr=theirs[2],
            pass_fds=inherited,
            env={"PATH": ENVIRONMENT["PATH"], "LC_ALL": ENVIRONMENT["LC_ALL"], **OWN_HOME},
            start_new_session=True,
        )
        self._resources.supervisor = Supervisor(process.pid)
        self._supervisor = Shell(ours, self._resources.supervisor)
        # The script's read end stays with us as well: what a shell left unread is drained before the next one.
        pipes.close(*theirs, *inherited[1:])
        if self._supervisor.open("/", WORK_SECONDS) is None:
            raise SandboxError(f"the sandbox did not start: {self._supervisor.said}")
        supervisor = int(self._supervise("echo $$"))
        self._resources.supervisor.locate(supervisor)
        if self._resources.group is not None:
            self._resources.group.admit(supervisor)

    def _bounded(self) -> None:
        """Waits until all that follows is bounded together, where it is to be: before anything is written or run."""
        if self._resources.group is not None:
            self._resources.group.confirm()

    def _supervising(self) -> Shell:
        if self._supervisor is None:
            raise SandboxError("the sandbox's supervisor ended")
        return self._supervisor

    def _copy(self, origin: PersistentSandbox, intake: Intake) -> None:
        """Takes over the files that another one keeps."""
        assert isinstance(origin, SupervisedSandbox)
        self._bounded()
        copy_files(origin._supervising(), origin._started(), self._supervising(), self._started(), intake)

    def _supervise(self, command: str, timeout: float = WORK_SECONDS) -> str:
        return supervise(self._supervising(), command, timeout)

    def _enter(self, prefix: str, environment: Mapping[str, str]) -> None:
        """Starts a shell in the inner layer, in the last directory."""
        layers = self._started()
        self._bounded()
        script, output, status = self._passed
        drain(script, self._agent_pipes.output, self._agent_pipes.status)
        variables = {**ENVIRONMENT, "HOME": layers.home, "PWD": layers.home, **environment}
        words = " ".join(shlex.quote(f"{name}={value}") for name, value in sorted(variables.items()))
        redirections = f"<&{script} >&{output} 2>&{status} " + " ".join(f"{fd}>&-" for fd in self._passed)
        # The supervisor's background jobs ignore SIGINT; the agent's programs must not.
        command = f"{prefix} env -i --default-signal=INT,QUIT {words} {' '.join(COMMAND)}"
        printed = self._supervise(f"({layers.limits}; exec {command}) {redirections} &\necho $!")
        assert self._supervisor is not None
        # Nothing that the finaliser holds may refer to this object.
        session = Session(
            int(printed.split()[-1]), layers.depth, functools.partial(reap, self._supervisor), self._resources.mark
        )
        self._resources.session = session
        self._shell = Shell(self._agent_pipes, session)
        cwd = self._shell.open(self._cwd, WORK_SECONDS)
        if cwd is None:
            raise SandboxError(f"the sandbox's shell did not start: {self._shell.said}")
        session.settle()
        self._cwd = cwd
        self._busy = False

    def _leave(self) -> None:
        """Ends the shell and everything it started."""
        session, self._shell = self._resources.session, None
        if session is not None:
            session.end_processes()
            session.close()
            # Only now: an interrupt before this leaves it to the next call, or to the release, to end it.
            self._resources.session = None
        if self._resources.supervisor is not None:
            self._resources.supervisor.sweep()  # an exception may have come before a session was known

    def _lay(self, archive: bytes, where: str) -> None:
        self._bounded()
        text = base64.b64encode(archive).decode()
        self._supervise(f"printf %s {text} | base64 -d | tar -xzp --no-same-owner -C {where}", _LAY_SECONDS)


def supervise(supervisor: Shell, command: str, timeout: float = WORK_SECONDS) -> str:
    """Has a supervisor run a command of ours; returns what it printed.

    Raises:
        SandboxError: If the command fails or the supervisor is gone.
    """
    if supervisor.ended:
        raise SandboxError("the sandbox's supervisor ended")
    done = supervisor.run(command, timeout)
    text = done.output.decode("utf-8", "replace").strip()
    if done.exit_code != 0 or done.cwd is None:
        why = "it took too long" if done.timed_out else text or f"exit status {done.exit_code}"
        raise SandboxError(f"the sandbox's supervisor could not do its work: {why}")
    return text


def reap(supervisor: Shell, pid: int) -> int:
    """The exit status of a process that a supervisor started and that has ended."""
    return int(supervise(supervisor, f"wait {pid}; echo $?").split()[-1])
