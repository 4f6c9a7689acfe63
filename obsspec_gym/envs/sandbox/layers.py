"""What a sandbox is built from, and what must be released at its end."""

from __future__ import annotations

import logging
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from obsspec_gym.envs.sandbox.cgroups import ControlGroup
from obsspec_gym.envs.sandbox.pipes import PipeSet
from obsspec_gym.envs.sandbox.processes import send_signal, with_environment
from obsspec_gym.envs.sandbox.sessions import AgentSession, Supervisor
from obsspec_gym.errors import SandboxError

logger = logging.getLogger(__name__)

STRAY_SECONDS = 10.0
"""How long processes that left the tree are looked for and killed, until there are none."""

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

HOSTNAME = "sandbox"
"""What every sandbox with a name of its own is called."""

OWN_HOME: Mapping[str, str] = {"HISTFILE": "", "HOME": "/", "SHELL": "/bin/bash"}
"""What keeps a supervisor from looking up whose it is, and from that user's history: it may be long."""


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
        base: Directory that ``kept`` is in, as the supervisor sees it.
        kept: Directories that a fork copies, relative to ``base``.
        depth: How many processes ``inner`` puts above the shell; 0 means that it has no namespace of its own.
        provisioned: Whether the agent's shell begins only with its first command: before, the agent may not be known.
        seal: Bash that the supervisor runs once, before the agent's first command or the verifier: how the machine is
            then is how it was built.
        judging_as_built: As ``judging``, for a verifier that is to find programs as they were built; empty where the
            agent cannot change them, or nothing can be done about it.
    """

    outer: tuple[str, ...]
    prepare: str
    inner: str
    judging: str
    home: str
    verifier: str
    limits: str
    base: str
    kept: tuple[str, ...]
    depth: int = 0
    provisioned: bool = False
    seal: str = ""
    judging_as_built: str = ""


@dataclass
class Resources:
    """Everything to release; knows nothing of the sandbox, so that a finaliser can hold it."""

    pipes: PipeSet = field(default_factory=PipeSet)
    process: subprocess.Popen[bytes] | None = None
    supervisor: Supervisor | None = None
    session: AgentSession | None = None
    directory: str | None = None
    group: ControlGroup | None = None
    mark: bytes = b""
    """An environment entry of every process that may have left our tree."""
    _launching: threading.RLock = field(default_factory=threading.RLock)
    _released: bool = False

    def launch(self, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """Starts the process, in a thread of its own.

        Interrupts come to the main thread: there, one may fall between the start of a process and anybody knowing of
        it, who could end it and take note of its end.

        Args:
            command: The process's words.
            **options: For :class:`subprocess.Popen`.

        Raises:
            OSError: If it cannot be started.
        """
        errors: list[Exception] = []
        started = threading.Event()

        def start() -> None:
            try:
                with self._launching:
                    if not self._released:
                        self.process = subprocess.Popen(command, **options)
            except (OSError, ValueError, subprocess.SubprocessError) as error:
                errors.append(error)  # is raised where the caller waits
            finally:
                started.set()

        threading.Thread(target=start, name="obsspec-launch", daemon=True).start()
        started.wait()
        if errors:
            raise errors[0]
        if self.process is None:
            raise SandboxError("the sandbox ended before it was started")
        return self.process

    def kill(self) -> None:
        """Kills every process, and closes nothing: callable from any thread."""
        if self.supervisor is not None:
            self.supervisor.end()

    def release(self) -> None:
        """Ends and removes everything; nothing is launched any more. Idempotent."""
        with self._launching:
            self._released = True
        if self.session is not None:
            self.session.end_processes()
            self.session.close()
            self.session = None
        self.kill()
        self.pipes.close_all()
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
        if self.supervisor is not None:
            self.supervisor.close()
            self.supervisor = None
        self._end_strays()
        if self.directory is not None:
            shutil.rmtree(self.directory, ignore_errors=True)
            self.directory = None
        if self.group is not None:
            self.group.remove()
            self.group = None

    def _end_strays(self) -> None:
        """Kills what may have left the tree; an exception may have come before a session was known."""
        deadline = time.monotonic() + STRAY_SECONDS
        while self.mark and (strays := with_environment(self.mark)):
            send_signal(strays, signal.SIGKILL)
            if time.monotonic() > deadline:
                logger.warning("processes of a sandbox do not end: %s", ", ".join(map(str, sorted(strays))))
                break
            time.sleep(0.01)
        self.mark = b""
