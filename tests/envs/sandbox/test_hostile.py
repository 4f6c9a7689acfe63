"""Hostile commands: what is observed, and what the next command sees, on every kind of sandbox."""

from __future__ import annotations

import time

import pytest
from hostile import ANY, CASES, matches

from obsspec_gym.envs.sandbox import Sandbox


@pytest.mark.parametrize("name", CASES)
def test_hostile_command(name: str, sandbox: Sandbox, sandbox_kind: str) -> None:
    case = CASES[name].on(sandbox_kind)
    if case.only and sandbox_kind not in case.only:
        pytest.skip(f"only where processes are contained: {', '.join(case.only)}")
    home = sandbox.workdir
    result = sandbox.run(case.command, case.timeout)
    assert matches(case.output, result.output, home), result
    if case.exit_code != ANY:
        assert result.exit_code == case.exit_code, result
        assert result.timed_out == (case.exit_code is None)
    assert case.restarted is None or result.restarted == case.restarted, result
    assert case.cwd is None or result.cwd == case.cwd.replace("{home}", home)
    assert result.output_bytes == len(result.output)
    after = sandbox.run(case.then, 20.0)
    assert matches(case.sees, after.output, home), after
    assert (after.timed_out, after.restarted) == (False, False)


def test_there_are_enough_of_them() -> None:
    assert len(CASES) >= 60


def test_a_mistake_of_syntax_breaks_nothing_some_commands_later(sandbox: Sandbox) -> None:
    """Bash 5.2 writes over its own memory after an unfinished substitution in a file, and aborts when it notices."""
    for _ in range(3):
        assert sandbox.run("v=1; echo \"$(ls 'a").exit_code == 2
        assert sandbox.run(". <(echo 'cat <(ls'); true").exit_code in (0, 1, 2)
        for command in ('echo "$(echo "\'$v\'")"', "ls '/' \"/\" >/dev/null", "declare -A m=(['a']=\"$(pwd)\")"):
            result = sandbox.run(command)
            assert (result.exit_code, result.restarted) == (0, False), result


def test_directories_with_odd_names_survive_a_restart(sandbox: Sandbox) -> None:
    sandbox.run("mkdir -p $'a\\'b $x\\n\\x96' && cd a*")
    assert sandbox.run("exit").restarted
    assert sandbox.run("pwd").output.decode("utf-8", "surrogateescape") == f"{sandbox.workdir}/a'b $x\n\udc96\n"


def test_directories_of_any_depth_are_reported(sandbox: Sandbox) -> None:
    """Longer than what the kernel takes as a path, and than a pipe holds."""
    deep = sandbox.run("n=$(printf '%0250d'); for i in {1..270}; do mkdir $n && cd $n || break; done; cd")
    assert deep.exit_code == 0
    deep = sandbox.run("for i in {1..270}; do cd $(printf '%0250d') || break; done; echo on", 60.0)
    assert (deep.output, deep.exit_code) == (b"on\n", 0)
    assert deep.cwd == sandbox.workdir + "/".join(["", *["0" * 250] * 270])
    assert sandbox.run("echo on").output == b"on\n"
    assert sandbox.run("exit").restarted  # no path leads back there
    assert sandbox.run("pwd; rm -rf ~/0*").output.decode() == f"{sandbox.workdir}\n"


def test_an_idle_shell_that_logs_out_is_replaced(sandbox: Sandbox) -> None:
    sandbox.run("TMOUT=1; cd /")
    time.sleep(1.5)
    result = sandbox.run("pwd")
    assert (result.output, result.exit_code, result.restarted) == (b"/\n", 0, True)
