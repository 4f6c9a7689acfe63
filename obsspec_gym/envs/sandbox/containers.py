"""Processes in a container, as the shell's protocol sees them.

Nothing here needs the host's process numbers: the daemon may be elsewhere. A process's streams are one connection to
the daemon. Its processes are found and signalled by the container's supervisor, which runs as root, under a number
and with rights that the agent's processes do not have.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable

from obsspec_gym.envs.sandbox.framed_pipes import FramedPipes
from obsspec_gym.envs.sandbox.patience import Patience
from obsspec_gym.errors import SandboxError

_SECONDS = 5.0  # for an answer, and for processes to end
_POLL_SECONDS = 0.01

PREPARE = r"""
trap '' HUP INT QUIT TERM ALRM USR1 USR2 VTALRM XCPU
obsspec_processes() {
    local path stat found=
    for path in /proc/[0-9]*; do
        [[ ${path#/proc/} == $$ || ${path#/proc/} == 1 ]] && continue
        stat=
        { read -r -d '' stat <"$path/stat"; } 2>/dev/null
        [[ ! $stat || ${stat##*) } == Z* ]] || found+=" ${path#/proc/}"
    done
    echo "processes:$found"
}
obsspec_signal() {
    builtin kill "-$1" -- "${@:2}" 2>/dev/null
    :
}
"""
"""Bash that the supervisor runs first. It needs no other process: an agent may have used them up."""


class ContainerSupervisor:
    """A container's first process: a bash of ours that runs as root and never runs what an agent wrote.

    No process inside can end it, for signals do not reach a namespace's first process. It takes up processes whose
    parents are gone, and ends when we hang up; with it every process of the container ends.

    Args:
        pipes: Its streams.
        patience: What bounds each wait for it.

    Attributes:
        lost: Whether it failed to answer: nothing more is to be expected of the container.
    """

    def __init__(self, pipes: FramedPipes, patience: Patience) -> None:
        self._pipes = pipes
        self._patience = patience
        self._asked = 0
        self._said = b""
        self.lost = False

    def ask(self, command: str, timeout: float = _SECONDS) -> str:
        """What it prints when it runs a command of ours.

        Args:
            command: Bash.
            timeout: Seconds to wait at most.

        Raises:
            SandboxError: If the command fails, the container is gone, or no answer comes in time.
        """
        self._asked += 1
        begin = b"\0%d " % self._asked
        script = f"{{ {command}\n}} </dev/null 2>&1\nbuiltin printf '\\0%d %d\\0' {self._asked} $?\n"
        deadline = time.monotonic() + self._patience.seconds(timeout)
        try:
            self._pipes.send(script.encode(), deadline)
            while not (answer := self._said.partition(begin))[2].endswith(b"\0"):
                self._said += self._pipes.read(deadline)
        except SandboxError:
            self.lost = not self._pipes.ended
            raise
        self._said = b""
        # What an interrupted question left may be in front.
        text = answer[0].rpartition(b"\0")[2].decode("utf-8", "replace").strip()
        if (status := answer[2].rstrip(b"\0")) != b"0":
            why = text or f"exit status {status.decode()}"
            raise SandboxError(f"the container's supervisor could not do its work: {why}")
        return text

    def processes(self) -> set[int]:
        """Every process of the container but itself, by the container's numbers."""
        return set(map(int, self.ask("obsspec_processes").rpartition("processes:")[2].split()))

    def signal(self, name: str, pids: Iterable[int]) -> None:
        """Sends a signal; processes that are gone are passed over."""
        if numbers := " ".join(map(str, pids)):
            self.ask(f"obsspec_signal {name} {numbers}")

    def sweep(self) -> None:
        """Ends every process but itself and waits until they are gone.

        Raises:
            SandboxError: If something does not end, or the container is gone.
        """
        deadline = time.monotonic() + self._patience.seconds(_SECONDS)
        while True:
            # One call of the kernel's for all of them: nothing slips through by being born meanwhile.
            self.signal("KILL", [-1])
            if not self.processes():
                return
            if time.monotonic() > deadline:
                self.lost = True
                raise SandboxError("processes in the container do not end")
            time.sleep(_POLL_SECONDS)


class ContainerSession:
    """An agent's shell and all it started: every process of the container but the supervisor.

    Args:
        supervisor: The container's supervisor.
        pipes: The streams of the agent's shell.
        status: Asks for the shell's exit status; None while it runs.
        patience: What bounds each wait for them.
    """

    def __init__(
        self,
        supervisor: ContainerSupervisor,
        pipes: FramedPipes,
        status: Callable[[], int | None],
        patience: Patience,
    ) -> None:
        self._supervisor = supervisor
        self._pipes = pipes
        self._status = status
        self._patience = patience
        self._pid = 0

    def settle(self) -> None:
        """Finds the shell; to be called when it has answered and has run nothing yet.

        Raises:
            SandboxError: If it is not the only process.
        """
        found = self._supervisor.processes()
        if len(found) != 1:
            raise SandboxError(f"the container has {len(found)} processes where the shell should be alone")
        (self._pid,) = found

    @property
    def ended(self) -> bool:
        """Whether the shell has ended."""
        return self._pipes.ended

    def fileno(self) -> int:
        """A descriptor that is readable once the shell has ended."""
        return self._pipes.fileno()

    def running(self) -> set[int]:
        """What the shell started and what that started."""
        return self._supervisor.processes() - {self._pid}

    def drop(self, pids: set[int]) -> None:
        """SIGURG to the shell, SIGINT to the processes, and SIGCONT to all in case they are stopped."""
        self._supervisor.signal("URG", [self._pid])
        self._supervisor.signal("INT", sorted(pids))
        self._supervisor.signal("CONT", [self._pid, *sorted(pids)])

    def interrupt(self, pids: set[int]) -> None:
        """SIGURG to the shell, SIGINT to it and to the processes, and SIGCONT to all in case they are stopped."""
        # The shell first: what it waits for may end at once.
        self._supervisor.signal("URG", [self._pid])
        self._supervisor.signal("INT", [self._pid, *sorted(pids)])
        self._supervisor.signal("CONT", [self._pid, *sorted(pids)])

    def kill(self, pids: set[int]) -> None:
        """SIGURG and SIGINT to the shell, SIGKILL to the processes."""
        self._supervisor.signal("URG", [self._pid])
        self._supervisor.signal("INT", [self._pid])
        self._supervisor.signal("CONT", [self._pid])
        # By number, so parents first: nothing that is about to end sees its child end and tells of it.
        self._supervisor.signal("KILL", sorted(pids))

    def end(self) -> int:
        """Ends the shell and everything it started; returns the shell's exit status.

        Raises:
            SandboxError: If that cannot be done or told.
        """
        self.end_processes()
        if self._patience.left() <= 0:  # stopped at its timeout: nobody waits until the daemon knows as well
            return 128 + signal.SIGKILL
        return exit_status(self._pipes, self._status, self._patience.seconds(_SECONDS))

    def end_processes(self) -> None:
        """Ends the shell and everything it started, and waits until all of it is gone.

        Raises:
            SandboxError: If something does not end, or the container is gone.
        """
        self._supervisor.sweep()

    def close(self) -> None:
        """Lets go of the streams."""
        self._pipes.close()


def exit_status(pipes: FramedPipes, status: Callable[[], int | None], seconds: float) -> int:
    """The exit status of a process, when it has ended and all it said has come.

    Raises:
        SandboxError: If it does not end in time.
    """
    deadline = time.monotonic() + seconds
    pipes.wait(seconds)
    while (ended := status()) is None:
        if time.monotonic() > deadline:
            raise SandboxError(f"a process in the container did not end within {seconds:g} s")
        time.sleep(_POLL_SECONDS)
    return ended
