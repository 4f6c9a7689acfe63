r"""One persistent bash, driven over three pipes.

The shell is interactive (``bash -i``, without a terminal, prompts, history or job control): as in the terminals that
language models know, a mistake (``${x:?}``, ``set -u``) does not end it, its messages name it ``bash``, and SIGINT
takes it back to reading its next line, with its variables, functions and directory as they were.

- **Script** (its standard input): one line a command, the command quoted and run by ``eval`` with empty standard
  input and with standard output and error on the output pipe, then one line that reports; so nothing a command leaves
  open (quotes, loops, here-documents) reaches over its end.
- **Status**: for each report ``NUL r id NUL exit-status NUL options NUL directory LF NUL LF``. Each command has an
  id of its own that nobody can have known before.
- **Output**: what the command prints. When a report is in, we send a nonce that nobody can have known and that bash
  prints on this pipe: what came before is the command's output, whatever it looks like.

While a command runs, bash keeps its own ends of the pipes under descriptors that are closed on exec: no program it
starts inherits them. The shell is the agent's own all the same: what it runs itself (builtins, subshells) can find
them (programs cannot where script and status are sockets: nobody can open those by their name in ``/proc/$$/fd``). It
would forge, take or break what this agent sees itself, nothing else: reports are read strictly, and a shell that no
longer answers is replaced. Redirections made with ``exec`` last for one command. What a background job prints later is
part of the next command's output, as on a terminal.

At its timeout a command is stopped in steps, each with a little time to take effect: SIGINT to what it started; to the
shell as well; SIGKILL to what it started; the end of the shell. What had been running before it is left alone. All of
that takes less than two seconds, unless the kernel cannot end a process. So that nothing of the command is run after
that, however what it started ends, the shell has a trap of ours on SIGURG (``trap`` lists it); where the agent took
that away, has a trap of its own on SIGINT, or made the shell a restricted one, the rest of a list may be run.

SIGURG alone goes to the shell at first, for SIGINT is not safe: one that comes just when bash begins to wait for a
program, before it has noted which handler it replaced, is sent again by its handler, to itself, for ever (``wait_for``
and ``wait_sigint_handler`` of bash 5.2; seen once in some thousands).
"""

from __future__ import annotations

import os
import re
import secrets
import select
import shlex
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Protocol

from obsspec_gym.envs.execution import Deadline, End, Execution, ShellResult, finish, until_mark

COMMAND = ("bash", "--noprofile", "--norc", "--noediting", "-i")
"""What to start, with the script pipe as its standard input, output and status pipe as its output and error."""


def _escaped(command: str) -> str:
    """A command as one word of bash, in which parameters are expanded all the same."""
    return "".join(f"\\{c}" if c in " \\>&" else c for c in command)


# What SIGURG, which means nothing to other programs, makes the shell do: drop the rest of the command. SIGINT alone
# does not, unless what the shell waits for dies of it. One that comes too late does nothing: it must not hit a report.
_DROP = r'\builtin test "${{BASH_SOURCE-}}" && \builtin kill -INT $$'
_OPEN = (
    "exec 201>&1 202>&2 >/dev/null 2>&1; set +o history; set +H +m; shopt -s execfail; PS1= PS2=; "
    f"unset MAILCHECK HISTFILE; history -c; trap {shlex.quote(_DROP)} URG; cd -- {{cwd}} || cd; unset OLDPWD\n"
)
_RUN = "{{ \\builtin . /dev/fd/203 203<<<{command}; }} </dev/null >&201 2>&1 201>&- 202>&-\n"
# A restricted shell (set -r) sources nothing; eval differs in line numbers and in what return does.
_RUN_RESTRICTED = "{{ \\builtin eval {command}; }} </dev/null >&201 2>&1 201>&- 202>&-\n"
# Neither of the next two lines has a quote or a brace. Bash 5.2 that was left in an unfinished ``$(`` writes before the
# beginning of its stack of open quotes (and aborts some commands later) until a mistake of syntax empties that stack:
# the mark begins with one. Exit status and options travel in a here-string, which no separators (IFS) can split.
_TELL = r"\builtin printf \\0r%s\\0%s\\0%s\\0 {id} {status} $- >&202"
_REPORT = (
    f"\\builtin . /dev/fd/203 203<<<{_escaped(_TELL.replace('{status}', '$?'))} || "
    f"\\builtin eval {_escaped(_TELL.replace('{status}', '0'))}; "  # the command that made the shell a restricted one
    "\\builtin pwd >&202; \\builtin printf \\\\0\\\\n >&202\n"
)
_REPORT_RESTRICTED = (
    f"\\builtin eval {_escaped(_TELL.replace('{status}', '$?'))}; "
    "\\builtin pwd >&202; \\builtin printf \\\\0\\\\n >&202\n"
)
_REPORTED = re.compile(rb"\0r([0-9a-f]{16})\0(\d{1,3})\0(\w*)\0([^\0]*)\0\n")
_MARK = ")\n\\builtin printf %s {nonce} >&201\n"

_CHUNK = 65_536
_STATUS_BYTES = 1_048_576  # of a report, whose directory may be long, and of what somebody else wrote beside it
_STEP_SECONDS = (0.15, 0.35, 0.8)  # for what is dropped, interrupted, killed to end
_STEP_REPEAT = 0.05
_GRACE_SECONDS = 1.8  # after the timeout, for everything
_LAST_WORDS_SECONDS = 0.1


class ShellProcess(Protocol):
    """The running bash and what it started, as those who started it can reach them."""

    def fileno(self) -> int:
        """A descriptor that is readable once the shell has ended."""
        ...

    def running(self) -> set[int]:
        """The processes that it started and that are alive."""
        ...

    def drop(self, pids: set[int]) -> None:
        """SIGURG to the shell, SIGINT to the processes; SIGCONT in case they are stopped."""
        ...

    def interrupt(self, pids: set[int]) -> None:
        """The same, and SIGINT to the shell, after SIGURG."""
        ...

    def kill(self, pids: set[int]) -> None:
        """SIGKILL to the processes; SIGURG and SIGINT to the shell, before."""
        ...

    def end(self) -> int:
        """Ends the shell and everything it started, and waits for it; returns the shell's exit status."""
        ...


class ShellStreams(Protocol):
    """Our ends of a shell's streams, all non-blocking."""

    @property
    def script(self) -> int:
        """A descriptor to write to."""
        ...

    @property
    def output(self) -> int:
        """A descriptor that is readable when output may have come."""
        ...

    @property
    def status(self) -> int:
        """A descriptor that is readable when something may have come on the status stream; may be the same."""
        ...

    def receive(self, ready: set[int]) -> tuple[bytes, bytes]:
        """What is there now of output and status, up to a chunk; takes out of ``ready`` what has only hung up."""
        ...


@dataclass(frozen=True, slots=True)
class ShellPipes:
    """A pipe for each of a shell's streams."""

    script: int
    output: int
    status: int

    def receive(self, ready: set[int]) -> tuple[bytes, bytes]:
        """What is there now of output and status, up to a chunk; takes out of ``ready`` what has only hung up."""
        output = _read(self.output) if self.output in ready else b""
        status = _read(self.status) if self.status in ready else b""
        if not status:
            ready.discard(self.status)  # a socket's way of hanging up
        return output, status


class Shell:
    """Talks to one bash from its start to its end.

    Args:
        pipes: Our ends; they belong to the caller.
        process: The bash at the other ends.
        limit: Bytes of a command's output that are kept.
    """

    def __init__(self, pipes: ShellStreams, process: ShellProcess, limit: int = 65_536) -> None:
        self._pipes = pipes
        self._process = process
        self._limit = limit
        self._late = b""
        self._status = b""
        self._unsent = b""
        self._id = b""
        self._restricted = False
        self._ended = False

    @property
    def ended(self) -> bool:
        """Whether the bash has ended, as far as we have noticed."""
        return self._ended

    @property
    def said(self) -> str:
        """What came on the status pipe that is no report: why it did not start, say."""
        return self._status.decode("utf-8", "replace").replace("\0", " ").strip() or "it said nothing"

    def open(self, cwd: str, timeout: float) -> str | None:
        """Makes the bash ready; returns its directory, or None when it does not answer in time.

        Args:
            cwd: Where it shall begin; where it cannot, at home, and otherwise where it was started.
            timeout: Seconds.
        """
        self._unsent += os.fsencode(_OPEN.format(cwd=shlex.quote(cwd)))
        self._begin()
        report = finish(self._report(Deadline(timeout)))
        return report[1] if report else None

    def run(self, command: str, timeout: float) -> ShellResult:
        """Runs a command, for at most ``timeout`` seconds and the moment it takes to stop it."""
        return self.execute(command, timeout).finish()

    def execute(self, command: str, timeout: float) -> Execution:
        """Starts a command, which is to be brought to its end before the next one; see :meth:`run`."""
        earlier = self._process.running()
        line = _RUN_RESTRICTED if self._restricted else _RUN
        self._unsent += os.fsencode(line.format(command=shlex.quote(command)))
        self._begin()
        self._send()
        deadline = Deadline(timeout)
        return Execution(self._steps(deadline, earlier), deadline, self._limit)

    def _steps(self, deadline: Deadline, earlier: set[int]) -> Generator[bytes, None, End]:
        """The output of a command, to its end; stops it at the deadline."""
        late, self._late = self._late, b""
        yield late
        report = yield from self._report(deadline)
        timed_out = report is None and not self._ended
        last = Deadline(max(0.0, deadline.left()) + _GRACE_SECONDS)
        if timed_out:
            report = yield from self._stop(earlier)
        cwd = report[1] if report and (yield from self._mark(last)) else None
        exit_code = report[0] if report else None
        if cwd is None:
            status = yield from self._end()
            exit_code = status if exit_code is None else exit_code
        return End(None if timed_out else exit_code, cwd, timed_out)

    def _stop(self, earlier: set[int]) -> Generator[bytes, None, tuple[int, str] | None]:
        """The steps that stop a command; the report that follows, or None when the shell itself must end."""
        process = self._process
        for signal_, seconds in zip((process.drop, process.interrupt, process.kill), _STEP_SECONDS, strict=True):
            step = Deadline(seconds)
            while step.left() > 0 and not self._ended:
                signal_(self._process.running() - earlier)
                # The signal may have hit the very line that reports.
                self._ask()
                report = yield from self._report(Deadline(_STEP_REPEAT))
                if report:
                    return report
        return None

    def _mark(self, deadline: Deadline) -> Generator[bytes, None, bool]:
        """Reads the output to the point where the command ended; False when that cannot be told."""
        nonce = secrets.token_hex(16).encode()
        self._unsent += os.fsencode(_MARK.format(nonce=nonce.decode()))
        late = yield from until_mark(self._pump(deadline), nonce)
        self._late = late or b""
        return late is not None

    def _end(self) -> Generator[bytes, None, int]:
        """Ends the shell, takes what is left in the pipe and returns the exit status."""
        status = self._process.end()
        self._ended = True
        while data := self._pipes.receive({self._pipes.output})[0]:
            yield data
        return status

    def _begin(self) -> None:
        """Asks for the report on what was sent before."""
        self._id = secrets.token_hex(8).encode()
        self._status = b""
        self._ask()

    def _ask(self) -> None:
        line = _REPORT_RESTRICTED if self._restricted else _REPORT
        self._unsent += line.format(id=self._id.decode()).encode()

    def _report(self, deadline: Deadline) -> Generator[bytes, None, tuple[int, str] | None]:
        """Exit status and directory from the report that was asked for; None at the deadline or the shell's end."""
        for data in self._pump(deadline):
            yield data
            for id_, code, options, cwd in _REPORTED.findall(self._status):
                if id_ == self._id:
                    self._restricted = b"r" in options
                    return int(code), os.fsdecode(cwd.removesuffix(b"\n"))
        return None

    def _pump(self, deadline: Deadline) -> Iterator[bytes]:
        """Moves bytes on all pipes until the deadline or the shell's end; yields output as it comes (or b"").

        After the deadline it looks once more: whoever takes the output may be slower than the command was.
        """
        pipes = self._pipes
        poll = select.poll()
        for fd in (pipes.output, pipes.status, self._process.fileno()):
            poll.register(fd, select.POLLIN)
        ending: Deadline | None = None
        left = 1.0
        while left > 0 and not self._ended:
            left = min(deadline.left(), ending.left()) if ending else deadline.left()
            self._send()
            if self._unsent:
                poll.register(pipes.script, select.POLLOUT)
            # A pipe whose other end is gone hangs up for ever; it has nothing more to say.
            ready = {fd for fd, events in poll.poll(max(0.0, left) * 1000) if events != select.POLLHUP}
            if self._unsent:
                poll.unregister(pipes.script)
            output, said = pipes.receive(ready)
            self._status = (self._status + said)[-_STATUS_BYTES:]
            # What it said before it ended still counts; but somebody else may hold its output and go on.
            if ending is None and self._process.fileno() in ready:
                ending = Deadline(_LAST_WORDS_SECONDS)
            self._ended = ready == {self._process.fileno()}
            yield output
        self._ended = self._ended or ending is not None

    def _send(self) -> None:
        while self._unsent:
            try:
                self._unsent = self._unsent[os.write(self._pipes.script, self._unsent) :]
            except BlockingIOError:
                return
            except ConnectionError:  # the end of the shell is seen on its own descriptor
                self._unsent = b""


def _read(fd: int) -> bytes:
    """What is there now, up to a chunk."""
    try:
        return os.read(fd, _CHUNK)
    except BlockingIOError:
        return b""
