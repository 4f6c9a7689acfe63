"""What every sandbox offers: a place where commands run, one after another, in one persistent shell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from obsspec_gym.envs.sandbox.stream import CommandStream


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a command did.

    Attributes:
        output: stdout and stderr merged, as bytes, at most the sandbox's limit: the first and last halves are
            kept, and ``output_bytes`` tells how many there were.
        output_bytes: How many bytes it printed in all.
        exit_code: Its exit status; 128 + signal for signals; ``None`` when it was stopped at its timeout.
        cwd: The shell's working directory afterwards.
        seconds: Wall seconds it ran.
        timed_out: Whether it was stopped at its timeout.
        restarted: Whether the shell ended (``exit``, ``exec``, a kill) and was started anew in the last directory.
    """

    output: bytes
    output_bytes: int
    exit_code: int | None
    cwd: str
    seconds: float
    timed_out: bool = False
    restarted: bool = False


@runtime_checkable
class Sandbox(Protocol):
    """One isolated place with one persistent shell. Constructors start nothing; blocking; one thread at a time."""

    @property
    def workdir(self) -> str:
        """The agent's first working directory, as seen inside; its home, unless its machine says otherwise."""
        ...

    @property
    def home(self) -> str:
        """The agent's HOME, as seen inside, once a command has run: observations write it as ``~``."""
        ...

    def start(self) -> None:
        """Starts it.

        Raises:
            SandboxUnavailableError: If this machine cannot provide it; says why and what can be done.
        """
        ...

    def write(self, files: Mapping[str, str | bytes]) -> None:
        """Lays files: path relative to :attr:`workdir` -> content. Contents beginning with ``#!`` are executable."""
        ...

    def run(self, command: str, timeout: float = 30.0) -> CommandResult:
        """Runs a command in the persistent shell.

        Args:
            command: Bash; anything but NUL. May span lines.
            timeout: Seconds; then it is stopped and what it printed is kept.

        Raises:
            InvalidArgumentError: Before anything is sent: NUL in the command, or more than 1,000,000 bytes.
            SandboxError: If the sandbox broke.
            ClosedError: If it is closed.
        """
        ...

    def stream(self, command: str, timeout: float = 30.0) -> CommandStream:
        """Starts a command in the persistent shell; its output can be read as it comes.

        The same command, run by :meth:`run`, gives the same result. Where the stream is left half-way, the command is
        stopped as at its timeout; so does any other call on the sandbox that comes before the stream's end. The
        timeout counts from now, whether or not somebody reads.

        Args:
            command: As for :meth:`run`.
            timeout: As for :meth:`run`.

        Raises:
            InvalidArgumentError, SandboxError, ClosedError: As :meth:`run`; the latter two also while it is read.
        """
        ...

    def fork(self) -> Sandbox:
        """A started sandbox of the same kind and options, with a copy of this one's files and its directory.

        Copied are the agent's home and, where the sandbox has one of its own, ``/tmp``: directories, files with holes,
        symbolic and hard links, FIFOs, permissions and modification times. Not copied are processes and background
        jobs, the shell's variables (exported ones, too), functions, aliases, options and open files, ``/dev/shm``,
        sockets, extended attributes, inode numbers and times of access and change. A command under way is stopped as
        by :meth:`stream`. Whatever happens in one of the two afterwards does not show in the other.

        Raises:
            SandboxError: If it cannot be copied or started; nothing of it is left, and this one goes on.
            ClosedError: If this one is closed.
        """
        ...

    def verify(
        self,
        script: str,
        files: Mapping[str, str | bytes],
        env: Mapping[str, str],
        timeout: float = 60.0,
        *,
        as_built: bool = False,
    ) -> CommandResult:
        """Runs a script in a clean process of its own over the file system as the agent left it.

        The agent's processes are ended first. ``files`` lie under ``$VERIFIER``, under a name drawn for this call,
        where no agent process could have seen or changed them; ``env`` is added to the clean environment (an image's
        own is there as well); the working directory is :attr:`workdir`.

        Args:
            script: Bash.
            files: Relative path to content.
            env: Variables.
            timeout: Seconds, after which it is stopped.
            as_built: Whether ``/usr``, ``/etc``, ``/bin``, ``/sbin``, ``/lib`` and their like are as they were before
                the agent's first command, whatever it did there: for agents that are root in an image. Only
                Bubblewrap can do that; where agents cannot write there, nothing needs to be done.
        """
        ...

    def close(self) -> None:
        """Ends every process in it and removes everything it left. Idempotent."""
        ...
