"""Output as it comes: the same text and the same result, however it comes, and whoever stops listening."""

from __future__ import annotations

import contextlib
import gc
import glob
import os
import secrets
import select
import shlex
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from obsspec_gym.envs import shell
from obsspec_gym.envs.sandbox import Sandbox
from obsspec_gym.envs.sandbox.base import CommandResult
from obsspec_gym.envs.sandbox.stream import CommandStream
from obsspec_gym.errors import ClosedError, InvalidArgumentError, SandboxError

RESULT = CommandResult(b"", 0, 0, "/", 0.0)


class Fake:
    """A command that prints these pieces."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.result: CommandResult | None = None
        self._pieces = pieces

    def read(self) -> bytes | None:
        if self._pieces:
            return self._pieces.pop(0)
        self.result = RESULT
        return None

    def stop(self) -> None:
        self.result = RESULT

    def abandon(self) -> None:
        pass


def fake(pieces: list[bytes]) -> CommandStream:
    return CommandStream(Fake(list(pieces)))


@settings(max_examples=50)
@given(st.lists(st.one_of(st.binary(max_size=6), st.text(max_size=3).map(lambda text: text.encode()))), st.data())
def test_where_pieces_are_cut_never_changes_the_text(parts: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(parts)
    places = sorted(data.draw(st.lists(st.integers(0, len(whole)))))
    cut = [whole[begin:end] for begin, end in zip([0, *places], [*places, len(whole)], strict=True)]
    stream = fake(cut)
    texts = list(stream)
    assert "".join(texts) == whole.decode("utf-8", "replace")
    assert "" not in texts
    assert stream.result is RESULT


def test_a_character_comes_when_it_is_whole() -> None:
    stream = fake([b"a\xe2", b"\x82", b"\xac", b"\xff\xe2"])
    assert list(stream) == ["a", "€", "\ufffd", "\ufffd"]


def script(chunks: list[bytes], status: int) -> str:
    """A command that prints these chunks, one write each."""
    program = f"import os, time\nfor chunk in {chunks!r}:\n    os.write(1, chunk)\n    time.sleep(0.002)\n"
    return f"python3 -c {shlex.quote(program)}; (exit {status})"


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chunks=st.lists(st.binary(max_size=20), max_size=6), status=st.integers(0, 255))
def test_streaming_gives_what_running_gives(chunks: list[bytes], status: int, shared_sandbox: Sandbox) -> None:
    command = script(chunks, status)
    ran = shared_sandbox.run(command)
    stream = shared_sandbox.stream(command)
    text = "".join(stream)
    assert text == ran.output.decode("utf-8", "replace") == b"".join(chunks).decode("utf-8", "replace")
    assert facts(stream.result) == facts(ran)
    assert ran.exit_code == status


def facts(result: CommandResult) -> tuple[object, ...]:
    return result.output, result.output_bytes, result.exit_code, result.cwd, result.timed_out, result.restarted


@pytest.mark.parametrize(
    "command",
    [
        "",
        "echo a; echo b >&2; cd /; exit 3",
        "cd /tmp; (exit 7)",
        "seq 40000",
        "echo 'abc",
        "kill -9 $$",
        "printf 'no newline'",
        "(sleep 0.05; echo late) & echo now; wait",
    ],
)
def test_every_end_is_the_same(command: str, sandbox: Sandbox) -> None:
    ran = sandbox.run(command)
    sandbox.run("cd")
    stream = sandbox.stream(command)
    text = "".join(stream)
    assert facts(stream.result) == facts(ran)
    assert len(text.encode()) == ran.output_bytes
    assert sandbox.run("echo on").output == b"on\n"


def test_output_comes_while_the_command_runs(sandbox: Sandbox) -> None:
    with sandbox.stream("echo ready; sleep 100; echo gone") as stream:
        assert next(stream) == "ready\n"
        with pytest.raises(InvalidArgumentError, match="no result yet"):
            _ = stream.result
        stream.close()
    assert stream.result.timed_out
    assert list(stream) == []


def test_a_stream_stops_at_its_timeout(sandbox: Sandbox) -> None:
    stream = sandbox.stream("v=1; echo before; sleep 100; echo after", 0.4)
    assert "".join(stream) == "before\n"
    assert (stream.result.timed_out, stream.result.exit_code, stream.result.output) == (True, None, b"before\n")
    assert sandbox.run("echo $v").output == b"1\n"


def test_a_command_that_ended_in_time_is_not_late_because_its_reader_was(sandbox: Sandbox) -> None:
    stream = sandbox.stream("echo quick", 0.3)
    time.sleep(0.6)
    assert stream.finish().exit_code == 0
    assert stream.result.output == b"quick\n"


@pytest.mark.parametrize("how", ["close", "with", "forget", "break", "exception", "run", "write", "verify", "stream"])
def test_leaving_half_way_stops_the_command(how: str, sandbox: Sandbox) -> None:
    sandbox.run("v=7; mkdir -p d; cd d; printf '' >ticks")
    command = "echo first; while :; do echo . >>ticks; sleep 0.01; done"
    stream: CommandStream | None = sandbox.stream(command)
    assert stream is not None
    assert next(stream) == "first\n"
    match how:
        case "close":
            stream.close()
        case "with":
            with stream:
                pass
        case "forget":
            stream = None
            gc.collect()
        case "break":
            stream.close()
            for _ in sandbox.stream(command):
                break
        case "exception":
            with pytest.raises(ZeroDivisionError), stream:
                raise ZeroDivisionError
        case "run":
            sandbox.run("true")
        case "write":
            sandbox.write({"x": "y"})
        case "verify":
            assert sandbox.verify("true", {}, {}).exit_code == 0
        case "stream":
            assert list(sandbox.stream("echo other")) == ["other\n"]
    if stream is not None:
        assert list(stream) == []
        assert (stream.result.timed_out, stream.result.exit_code) == (True, None)
        assert stream.result.output == b"first\n"
        del stream
    kept = b"" if how == "verify" else b"7"  # verifying always replaces the shell
    size = sandbox.run("wc -c <ticks").output
    assert sandbox.run('sleep 0.1; echo "$v"; wc -c <ticks').output == kept + b"\n" + size


def test_a_shell_whose_program_dies_of_an_interrupt_gets_none_itself(
    own_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One may catch bash where it interrupts itself for ever: the sandbox would lose its variables (shell.py)."""
    monkeypatch.setattr(shell, "_STEP_SECONDS", (30.0, 30.0, 30.0))
    argument = f"98764.{os.getpid()}7"
    stream = own_sandbox.stream(f"trap - URG; trap 'echo interrupted' INT; echo first; sleep {argument}; echo last")
    assert next(stream) == "first\n"
    deadline = time.monotonic() + 20.0
    while not running(argument):
        assert time.monotonic() < deadline
    stream.close()
    assert (stream.result.output, stream.result.restarted) == (b"first\nlast\n", False)


def test_a_stream_that_nobody_refers_to_is_stopped_at_once(sandbox: Sandbox) -> None:
    argument = f"98765.{os.getpid()}7"
    stream: CommandStream | None = sandbox.stream(f"echo first; sleep {argument}; echo $v")
    assert stream is not None
    assert next(stream) == "first\n"
    deadline = time.monotonic() + 20.0
    while not running(argument):
        assert time.monotonic() < deadline
    stream = None
    gc.collect()
    assert not running(argument)
    assert not sandbox.run("true").restarted


def running(argument: str) -> list[str]:
    """Processes that have this on their command line."""
    found = []
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if argument.encode() in Path(path).read_bytes().split(b"\0"):
                found.append(path)
    return found


@pytest.mark.parametrize("where", ["reading", "stopping"])
def test_an_interrupt_leaves_the_sandbox_usable(
    where: str, own_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_sandbox.run("cd /")
    stream = own_sandbox.stream("echo first; sleep 100")
    if where == "stopping":
        assert next(stream) == "first\n"
    with monkeypatch.context() as patch:
        patch.setattr(select, "poll", interrupt)  # whoever begins to wait
        with pytest.raises(KeyboardInterrupt):
            next(stream) if where == "reading" else stream.close()
    if where == "reading":
        with pytest.raises(SandboxError, match="interrupted before its end"):
            next(stream)
        stream.close()
    assert list(stream) == []
    with pytest.raises(InvalidArgumentError, match="no result"):
        _ = stream.result
    after = own_sandbox.run("echo on; pwd")
    assert (after.output, after.restarted) == (b"on\n/\n", True)


def interrupt() -> None:
    raise KeyboardInterrupt


def test_the_end_of_the_sandbox_ends_its_stream(own_sandbox: Sandbox) -> None:
    stream = own_sandbox.stream("echo first; sleep 100")
    assert next(stream) == "first\n"
    own_sandbox.close()
    with pytest.raises(ClosedError):
        next(stream)
    stream.close()
    with pytest.raises(InvalidArgumentError):
        _ = stream.result


def test_a_stream_keeps_its_sandbox(own_sandbox: Sandbox) -> None:
    stream = own_sandbox.stream("echo a; sleep 0.05; echo b")
    del own_sandbox
    gc.collect()
    assert "".join(stream) == "a\nb\n"


def test_a_flood_is_passed_on_whole_and_kept_in_part(sandbox: Sandbox) -> None:
    total = 0
    stream = sandbox.stream("head -c 3000000 /dev/zero")
    for text in stream:
        total += len(text)
    assert total == stream.result.output_bytes == 3_000_000
    assert len(stream.result.output) == 65_536


def test_parts_of_the_nonce_are_output(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a command prints that looks like our mark's beginning, and however late it comes."""
    nonce = "0123456789abcdef0123456789abcdef"
    random = secrets.token_hex  # still for the ids of reports, which are shorter
    monkeypatch.setattr(secrets, "token_hex", lambda size: nonce if size == len(nonce) // 2 else random(size))
    for part in (nonce[:31], nonce[:1], nonce[:16] * 2, "x" + nonce[:20]):
        command = f"printf {part}; (sleep 0.02; printf {part}) & :"
        stream = sandbox.stream(command)
        text = "".join(stream)
        assert text.startswith(part)
        assert stream.result.output == text.encode()
        rest = sandbox.run("wait").output.decode()
        assert text + rest == part * 2


def test_refusals_are_those_of_run(shared_sandbox: Sandbox) -> None:
    with pytest.raises(InvalidArgumentError, match="NUL"):
        shared_sandbox.stream("a\0b")
    with pytest.raises(InvalidArgumentError, match="positive, finite"):
        shared_sandbox.stream("ls", 0.0)
