"""Hostile commands: what is observed, and what the next command sees, on every kind of sandbox."""

from __future__ import annotations

import shlex
import time

import pytest
from hostile import ANY, CASES, CONTAINED, matches
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

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
    names = "n=$(printf '%0250d'); p=$n; for i in {1..14}; do p+=/$n; done"
    deep = sandbox.run(f"{names}; for i in {{1..18}}; do mkdir -p $p && cd $p || break; done; echo on", 60.0)
    assert (deep.output, deep.exit_code) == (b"on\n", 0)
    assert deep.cwd == sandbox.workdir + "/".join(["", *["0" * 250] * 270])
    assert sandbox.run("echo on").output == b"on\n"
    assert sandbox.run("exit").restarted  # no path leads back there
    assert sandbox.run("pwd; rm -rf ~/0*", 60.0).output.decode() == f"{sandbox.workdir}\n"


def test_an_idle_shell_that_logs_out_is_replaced(sandbox: Sandbox) -> None:
    sandbox.run("TMOUT=1; cd /")
    time.sleep(1.5)
    result = sandbox.run("pwd")
    assert (result.output, result.exit_code, result.restarted) == (b"/\n", 0, True)


characters = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=60)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=characters)
@example(text="\x01\x7f\x01\x01")  # what bash itself uses to quote
@example(text="\r\n\x1b[A\x04\x03")
def test_any_text_comes_back(text: str, sandbox: Sandbox) -> None:
    """As an argument, and as a file."""
    quoted = shlex.quote(text)
    result = sandbox.run(f"printf %s {quoted}; cat <<<{quoted}")
    assert (result.output.decode(), result.exit_code) == (f"{text}{text}\n", 0)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=300))
def test_any_bytes_come_back(data: bytes, sandbox: Sandbox) -> None:
    sandbox.write({"f": data})
    result = sandbox.run("cat f")
    assert (result.output, result.output_bytes, result.exit_code) == (data, len(data), 0)


WORDS = [
    *[
        "echo a",
        "'",
        '"',
        "`",
        "$(",
        ")",
        "((",
        "))",
        "{",
        "}",
        "[[",
        "]]",
        "<<E",
        "E",
        "<(",
        "|",
        "&&",
        ";",
        ";;",
        "&",
    ],
    *[
        "if",
        "then",
        "fi",
        "do",
        "done",
        "case x in",
        "esac",
        "f()",
        "!",
        "#",
        "\\",
        "$",
        "${",
        "$((",
        "=",
        "x=(",
        ">&3",
    ],
    *["eval", "return", "break", "set -u", "trap", "local x", "true", "false", "\n", "\t", "\x01", "<", "coproc"],
]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(st.sampled_from(WORDS), max_size=12), glue=st.sampled_from([" ", ""]))
def test_any_command_leaves_a_shell(parts: list[str], glue: str, sandbox: Sandbox) -> None:
    """Whatever it is, it ends, and the next command gets its own result."""
    result = sandbox.run(glue.join(parts), 1.0)
    assert len(result.output) <= 65_536
    after = sandbox.run("trap - DEBUG EXIT ERR; set +u; echo on")
    assert (after.output.splitlines()[-1:], after.exit_code, after.restarted) == ([b"on"], 0, False)


def contained(sandbox_kind: str) -> None:
    if sandbox_kind not in CONTAINED:
        pytest.skip("anything at all is run: only where it can touch nothing of this machine")


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(command=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=80))
@example(command="\x01")
@example(command="'\n\"\n`\n\\")
@example(command="\x7f\x01'\r\n\x1b[200~")
@example(command="\u2028\u2029\ufeff\U0010ffff")
def test_any_text_as_a_command_leaves_a_clean_shell(command: str, sandbox: Sandbox, sandbox_kind: str) -> None:
    contained(sandbox_kind)
    anything(command, sandbox)


ODD = st.sampled_from([*"'\"`$(){}[];&|<>\\!#*?~=%^, \n\r\t", *map(chr, range(1, 32)), "\x7f", "\x80", "\xff"])


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(ODD | st.characters(codec="ascii", exclude_characters="\0"), max_size=40))
def test_any_quotes_and_control_characters_leave_a_clean_shell(
    parts: list[str], sandbox: Sandbox, sandbox_kind: str
) -> None:
    contained(sandbox_kind)
    anything("".join(parts), sandbox)


def anything(command: str, sandbox: Sandbox) -> None:
    """Runs a command of which nothing is known; the next one gets its own result, and nothing else."""
    result = sandbox.run(command, 1.0)
    assert len(result.output) <= 65_536
    sandbox.run("wait", 5.0)  # what a background job of it prints late is its own
    after = sandbox.run("echo on")
    assert (after.output, after.exit_code, after.timed_out, after.restarted) == (b"on\n", 0, False, False), result
