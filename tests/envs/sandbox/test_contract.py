"""What every sandbox promises besides its shell: files, verification, refusals."""

from __future__ import annotations

from typing import Any

import pytest

from obsspec_gym.envs.sandbox import Sandbox
from obsspec_gym.envs.sandbox.buffer import OutputBuffer
from obsspec_gym.envs.sandbox.files import pack
from obsspec_gym.errors import InvalidArgumentError


def test_files_are_laid(sandbox: Sandbox) -> None:
    binary = bytes(range(256)) * 100
    sandbox.write({"src/main.py": "print('é')\n", "run": "#!/bin/sh\necho ran\n", "a b/c'd": binary, "empty": ""})
    assert sandbox.run("python3 src/main.py && ./run").output == "é\nran\n".encode()
    assert sandbox.run("stat -c '%n %a %Y' src src/main.py run empty").output == (
        b"src 755 1704067200\nsrc/main.py 644 1704067200\nrun 755 1704067200\nempty 644 1704067200\n"
    )
    assert int(sandbox.run('wc -c < "a b/c\'d"').output) == len(binary)
    sandbox.write({"empty": "now not"})
    assert sandbox.run("cat empty").output == b"now not"


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "", ".", "a\0b"])
def test_files_stay_inside(path: str, shared_sandbox: Sandbox) -> None:
    with pytest.raises(InvalidArgumentError, match="must be relative and stay inside"):
        shared_sandbox.write({path: "x"})


def test_the_same_files_make_the_same_archive() -> None:
    assert pack({"a": "1", "b/c": b"2"}) == pack({"b/c": b"2", "a": "1"})
    with pytest.raises(InvalidArgumentError, match="the content of a must be str or bytes, got int"):
        pack({"a": 3})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("command", "timeout", "message"),
    [
        ("a\0b", 1.0, "must not contain NUL, found one at character 1"),
        ("a" * 1_000_001, 1.0, "at most 1,000,000 bytes, got 1,000,001"),
        ("é" * 500_001, 1.0, "at most 1,000,000 bytes"),
        ("\ud800", 1.0, "valid Unicode"),
        (b"ls", 1.0, "must be a str, got bytes"),
        ("ls", 0.0, "positive, finite number of seconds, got 0"),
        ("ls", float("nan"), "positive, finite"),
        ("ls", float("inf"), "positive, finite"),
    ],
)
def test_bad_commands_are_refused(command: Any, timeout: float, message: str, shared_sandbox: Sandbox) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        shared_sandbox.run(command, timeout)
    assert shared_sandbox.run("echo fine").output == b"fine\n"


def test_a_command_of_a_million_bytes_runs(sandbox: Sandbox) -> None:
    command = "echo " + "a" * 999_000 + " | wc -c"
    assert sandbox.run(command, 60.0).output == b"999001\n"


def test_verifiers_run_clean_and_apart(sandbox: Sandbox) -> None:
    sandbox.run(
        "mkdir -p bin src; cd src; export PATH=~/bin:$PATH SECRET=1; echo 'exit 0' >~/bin/false; chmod +x ~/bin/false;"
        "test() { :; }; export -f test; alias ls=true; echo 'exit 0' >~/.bashrc; export BASH_ENV=~/.bashrc"
    )
    result = sandbox.verify(
        'pwd; cat "$VERIFIER/expected/x"; echo "[$SECRET][$ANSWER][$BASH_ENV]"; type -t test; false || exit 7',
        {"expected/x": "1\n"},
        {"ANSWER": "it's\n42"},
    )
    home = sandbox.workdir
    assert result.output.decode() == f"{home}\n1\n[][it's\n42][]\nbuiltin\n"
    assert (result.exit_code, result.timed_out) == (7, False)


def test_the_agent_never_sees_the_verifier(sandbox: Sandbox) -> None:
    # A process of the agent that copies whatever it can find; it must be gone, and what it looks for as well.
    sandbox.run("(while :; do cp -r /verifier ../verifier stolen 2>/dev/null; sleep 0.005; done) & sleep 0.02")
    result = sandbox.verify('sleep 0.1; ls "$VERIFIER"; pgrep -f stolen', {"secret": "1"}, {})
    assert result.output == b"secret\n"
    after = sandbox.run("ls -A; ls -d /verifier ../verifier")
    assert b"stolen\n" not in after.output
    assert b"No such file" in after.output


def test_verifiers_see_what_the_agent_left_and_the_agent_goes_on(sandbox: Sandbox) -> None:
    sandbox.run("mkdir d; cd d; echo made >f; v=1")
    assert sandbox.verify("cat d/f", {}, {}).output == b"made\n"
    result = sandbox.run('pwd; echo "[$v]"')
    assert result.output.decode() == f"{sandbox.workdir}/d\n[]\n"
    assert result.restarted


@pytest.mark.parametrize("script", ["sleep 1000", "trap '' INT TERM; while :; do sleep 0.1; done"])
def test_verifiers_have_a_timeout(script: str, sandbox: Sandbox) -> None:
    result = sandbox.verify(script, {}, {}, timeout=0.3)
    assert (result.exit_code, result.timed_out) == (None, True)
    assert sandbox.run("echo fine").output == b"fine\n"


@pytest.mark.parametrize("script", ["kill -9 $$", "exit 3", "set -e; false", "if"])
def test_verifiers_that_fail_fail(script: str, sandbox: Sandbox) -> None:
    assert sandbox.verify(script, {}, {}).exit_code not in (0, None)


@pytest.mark.parametrize("env", [{"a b": "c"}, {"A": "x\0"}, {"A": "x" * 100_001}])
def test_bad_variables_are_refused(env: dict[str, str], shared_sandbox: Sandbox) -> None:
    with pytest.raises(InvalidArgumentError):
        shared_sandbox.verify("true", {}, env)


@pytest.mark.parametrize("sizes", [[3], [1, 1, 1, 1, 1, 1, 1], [10], [2, 9, 4], [100, 1]])
def test_a_buffer_keeps_both_ends(sizes: list[int]) -> None:
    stream = bytes(i % 251 for i in range(sum(sizes)))
    buffer = OutputBuffer(6)
    position = 0
    for size in sizes:
        buffer.feed(stream[position : position + size])
        position += size
    assert buffer.total == len(stream)
    assert bytes(buffer) == (stream if len(stream) <= 6 else stream[:3] + stream[-3:])
