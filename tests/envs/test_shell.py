"""Hostile commands: what is observed, and what the next command sees."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest

from obsspec_gym.envs.sandbox import Sandbox


@dataclass(frozen=True)
class Case:
    """One command.

    Attributes:
        command: What is run; ``output``: what it must print, exactly (``re:`` begins a regular expression).
        exit_code: None where it must be stopped at its timeout.
        then: What runs next, and ``sees``: its exact output.
    """

    command: str
    output: str = ""
    exit_code: int | None = 0
    then: str = "echo clean; pwd"
    sees: str = "clean\n{home}\n"
    restarted: bool | None = False  # None: versions of bash differ
    timeout: float = 20.0


def stopped(command: str, output: str = "", *, restarted: bool = False, **more: str) -> Case:
    return Case(command, output, None, restarted=restarted, timeout=0.6, **more)


SYNTAX = "bash: /dev/fd/203: line {}: "

CASES = {
    # How a command ends.
    "empty": Case(""),
    "blank": Case(" \t "),
    "newlines": Case("\n\n\n"),
    "comment": Case("# nothing"),
    "trailing comment": Case("echo a # b", "a\n"),
    "trailing semicolon": Case("echo a;", "a\n"),
    "only a semicolon": Case(";", "re:.*syntax error near unexpected token `;'.*", 2),
    "trailing ampersand": Case("sleep 0.01 &", then="wait; echo waited", sees="waited\n"),
    "trailing backslash": Case("echo a\\", "a\n"),
    "trailing pipe": Case("echo a |", "re:.*syntax error: unexpected end of file\n", 2),
    "unterminated single quote": Case(
        "echo 'abc", f"{SYNTAX.format(1)}unexpected EOF while looking for matching `''\n", 2
    ),
    "unterminated double quote": Case('echo "abc', "re:.*unexpected EOF while looking for matching `\"'\n", 2),
    "unterminated substitution": Case("echo $(ls", "re:.*unexpected EOF.*", 2, restarted=None),
    "unterminated loop": Case("while true; do", "re:.*syntax error: unexpected end of file\n", 2),
    "unterminated if": Case("if", "re:.*syntax error: unexpected end of file\n", 2),
    "open brace": Case("{ echo a", "re:.*syntax error: unexpected end of file\n", 2),
    "closing brace": Case("}", "re:.*syntax error near unexpected token `}'.*", 2),
    "here-document": Case("cat <<END\na $((1 + 1))\nEND", "a 2\n"),
    "quoted here-document": Case("cat <<'END'\n$HOME `x`\nEND\necho b", "$HOME `x`\nb\n"),
    "unterminated here-document": Case("cat <<END\na", "re:.*here-document.*delimited by end-of-file.*\na\n"),
    "several lines": Case("x=1\ny=2\n\necho $((x + y))", "3\n"),
    "carriage return": Case("echo a\r", "a\r\n"),
    "error in the middle": Case("echo a\n)\necho b", f"re:a\n{SYNTAX.format(2)}syntax error near.*", 2),
    "quotes of all kinds": Case("""echo "'\\"" 'it'"'"'s' $'\\'' """, """'" it's '\n"""),
    # What it prints.
    "no newline": Case("printf abc", "abc"),
    "only newlines": Case("echo; echo", "\n\n"),
    "binary": Case("printf '\\x00\\x96\\xff\\x01'", "\x00\udc96\udcff\x01"),
    "split character": Case("printf '\\xe2\\x82'; sleep 0.02; printf '\\xac'", "€"),
    "escape codes": Case("printf '\\033]0;title\\007\\033[31mred'", "\x1b]0;title\x07\x1b[31mred"),
    "progress bar": Case("printf '1%%\\r2%%\\r'", "1%\r2%\r"),
    "fake report": Case("printf '\\0r1\\0000\\0/\\n\\0r2\\0000\\0/\\n\\0'", "\x00r1\x000\x00/\n\x00r2\x000\x00/\n\x00"),
    "stderr and stdout in order": Case("echo a; echo b >&2; echo c", "a\nb\nc\n"),
    "long line": Case("printf '%*s' 100000 '' | wc -c", "100000\n"),
    "long command": Case(f"echo {'a' * 5_000} | wc -c", "5001\n"),
    "command over the pipe's size": Case(f"echo {'a' * 200_000} | wc -c", "200001\n"),
    "many lines": Case("\n".join(f"x={i}" for i in range(2_000)) + "\necho $x", "1999\n"),
    "unicode": Case("echo 'h\u00e9llo \U0001f600'", "h\u00e9llo \U0001f600\n"),
    # What it reads.
    "reading stdin": Case("cat; read x; echo \"got '$x' $?\"", "got '' 1\n"),
    "python reads stdin": Case("wc -c", "0\n"),
    "stdin is the null device": Case("readlink /proc/self/fd/0", "/dev/null\n"),
    "no terminal": Case("tty; (exec </dev/tty) 2>/dev/null || echo none", "not a tty\nnone\n"),
    "descriptors of a child": Case("ls /proc/self/fd | tr '\\n' ' '", "0 1 2 203 3 "),
    # State.
    "directory": Case("mkdir -p 'a b' && cd 'a b'", sees="clean\n{home}/a b\n"),
    "directory that is gone": Case("mkdir x && cd x && rmdir ../x", sees="clean\n{home}/x\n"),
    "variable": Case("v=7; export w=8", then="echo $v; printenv w", sees="7\n8\n"),
    "array": Case("declare -A m=([k]=v)", then="echo ${m[k]}", sees="v\n"),
    "function": Case('f() { echo "f $1"; }', then="f 1", sees="f 1\n"),
    "alias": Case("alias hi='echo hello'", then="hi", sees="hello\n"),
    "option": Case("set -o noclobber", then="echo $-", sees="hiBCs\n"),
    "positional": Case("set -- a b c", then="echo $# $2", sees="3 b\n"),
    "exit status": Case("(exit 42)", "", 42, then="echo $?", sees="0\n"),
    "pipe failure": Case("false | true; echo ${PIPESTATUS[0]}", "1\n"),
    "umask": Case("umask 077", then="umask", sees="0077\n"),
    "no history expansion": Case("echo !! a!b", "!! a!b\n"),
    # Loops and jumps that could leave ours.
    "break": Case("break; echo on", "re:.*only meaningful in.*\non\n"),
    "continue": Case("continue 99; echo on", "re:.*only meaningful in.*\non\n"),
    "return": Case("return 3; echo not reached", "", 3),
    "unset variable": Case("set -u; echo $nope; echo no", "bash: nope: unbound variable\n", 1),
    "required parameter": Case("echo ${nope:?missing}", "bash: nope: missing\n", 1),
    "readonly": Case("readonly r=1; r=2; echo no", "bash: r: readonly variable\n", 1),
    "not found": Case("nope_nope", "bash: nope_nope: command not found\n", 127),
    "directory as program": Case("/", "bash: /: Is a directory\n", 126),
    # Things that touch the shell itself.
    "exit": Case("cd /; v=1; exit 3", "", 3, restarted=True, then='echo "[$v]"; pwd', sees="[]\n{home}\n"),
    "exit in the last directory": Case("exit", restarted=True),
    "exec": Case("exec echo replaced", "replaced\n", restarted=True),
    "exec fails": Case("exec nope_nope", "re:.*nope_nope: not found\n", 127),
    "set -e": Case("set -e; false; echo no", "", 1, restarted=True),
    "kill": Case("echo a; kill -9 $$", "a\n", 137, restarted=True),
    "terminate": Case("kill $$; echo still here", "still here\n"),
    "segmentation fault": Case("kill -SEGV $$", "", 139, restarted=True),
    "child killed": Case("bash -c 'kill -9 $$'", "", 137),
    "interrupt": Case("kill -INT $$; echo no", "", 130),
    "exit trap": Case("trap 'echo bye' EXIT; exit 4", "bye\n", 4, restarted=True),
    "debug trap": Case("trap 'echo d' DEBUG; :", "d\n", then="echo a", sees="d\na\n"),
    "error trap": Case("trap 'echo failed' ERR; false", "failed\n", 1),
    "xtrace": Case("set -x; echo a", "++ echo a\na\n", then="set +x", sees="+ builtin . /dev/fd/203\n++ set +x\n"),
    "prompt command": Case("PROMPT_COMMAND='echo p'; PS1='$ '; PS0=x"),
    "closed output": Case("exec 1>&- 2>&-; echo lost", "", 1),
    "closed input": Case("exec 0<&-; cat", "re:.*Bad file descriptor\n", 1),
    "redirected output": Case("exec >log; echo a", then="cat log", sees="a\n"),
    "descriptor of one's own": Case("exec 3>f; echo a >&3; cat f", "a\n"),
    "closed high descriptors": Case("exec 201>&- 202>&- 255<&-; echo a", "a\n"),
    "changed separators": Case("IFS=0123456789; PATH=", then="echo ok; IFS=' '", sees="ok\n"),
    "printf redefined": Case(
        "printf() { echo mine; }; pwd() { echo mine; }; printf", "mine\n", then="echo ok", sees="ok\n"
    ),
    "eval redefined": Case("eval() { :; }; source() { :; }; alias cd=ls echo=printf", then="pwd", sees="{home}\n"),
    "environment emptied": Case("unset HOME PATH; export -n PWD", then="/bin/pwd", sees="{home}\n"),
    "wrong PWD": Case("PWD=/nowhere", then="builtin pwd", sees="{home}\n"),
    "exit under a flood": Case(
        "setsid bash -c 'trap : INT; while :; do sleep 0.01; echo x; done' & exit 5", "re:(x\n)*", 5, restarted=True
    ),
    # Time.
    "background job": Case("(sleep 0.05; echo late) & echo now", "now\n", then="wait; echo done", sees="late\ndone\n"),
    "daemon that holds the output": Case("setsid sleep 5 & echo up", "up\n"),
    "sleeps too long": stopped("echo before; sleep 20; echo after", "before\n"),
    "state outlives a timeout": stopped("v=1; cd /; sleep 20", then="echo $v; pwd", sees="1\n/\n"),
    "loop of programs": stopped("while true; do sleep 0.05; done"),
    "loop of builtins": stopped("while :; do :; done"),
    "loop in a function": stopped("f() { while :; do :; done; }; f; echo no"),
    "pipeline": stopped("sleep 20 | sleep 20; echo no"),
    "subshell": stopped("(sleep 20; echo no); echo no"),
    "command substitution": stopped("x=$(sleep 20; echo no); echo no"),
    "stops itself": stopped("kill -STOP $$"),
    "child ignores interrupts": stopped("bash -c 'trap \"\" INT; while :; do sleep 0.1; done'"),
    "shell ignores interrupts": stopped("trap '' INT; while :; do sleep 0.1; done", restarted=True),
    "waits for a FIFO": stopped("mkfifo p; cat p"),
    "builtin redefined": stopped("builtin() { :; }", restarted=True),
    "read from a sleeping pipe": stopped("sleep 20 | cat"),
}


def check(expected: str, output: bytes, home: str) -> None:
    text = output.decode("utf-8", "surrogateescape")
    expected = expected.replace("{home}", home)
    if expected.startswith("re:"):
        assert re.fullmatch(expected[3:], text, re.DOTALL), text
    else:
        assert text == expected


@pytest.mark.parametrize("name", CASES)
def test_hostile_command(name: str, sandbox: Sandbox) -> None:
    case = CASES[name]
    result = sandbox.run(case.command, case.timeout)
    check(case.output, result.output, sandbox.workdir)
    assert result.exit_code == case.exit_code
    assert result.timed_out == (case.exit_code is None)
    assert case.restarted is None or result.restarted == case.restarted
    assert result.output_bytes == len(result.output)
    after = sandbox.run(case.then, 20.0)
    check(case.sees, after.output, sandbox.workdir)
    assert (after.timed_out, after.restarted) == (False, False)


def test_there_are_enough_of_them() -> None:
    assert len(CASES) >= 60


@pytest.mark.parametrize("command", ["yes", "cat /dev/zero", "yes & yes >&2"])
def test_a_flood_is_counted_stopped_and_bounded(command: str, sandbox: Sandbox) -> None:
    result = sandbox.run(command, 0.4)
    assert result.timed_out
    assert len(result.output) == 65_536
    assert result.output_bytes > 65_536
    sandbox.run("kill %1; wait")
    assert sandbox.run("echo clean").output.endswith(b"clean\n")


def test_both_ends_of_a_long_output_are_kept(sandbox: Sandbox) -> None:
    result = sandbox.run("seq 100000")
    everything = b"".join(b"%d\n" % i for i in range(1, 100_001))
    assert result.output == everything[:32_768] + everything[-32_768:]
    assert result.output_bytes == len(everything)


def test_late_output_of_a_stopped_command_never_comes(sandbox: Sandbox) -> None:
    stop = sandbox.run("(trap '' INT; sleep 0.6; echo late); echo no", 0.1)
    assert stop.timed_out
    assert sandbox.run("sleep 0.8; echo next").output == b"next\n"


def test_what_ran_before_outlives_a_timeout(sandbox: Sandbox) -> None:
    sandbox.run("env --default-signal=INT sleep 30 & echo $! >pid")
    assert sandbox.run("sleep 20", 0.2).timed_out
    assert sandbox.run("kill -0 $(cat pid) && echo alive").output == b"alive\n"


def test_a_shell_killed_between_commands_is_replaced(sandbox: Sandbox) -> None:
    sandbox.run("(sleep 0.1; kill -9 $$) & v=1; cd /")
    assert sandbox.run("sleep 0.5").restarted or sandbox.run("true").restarted
    result = sandbox.run('echo "[$v]"; pwd')
    assert (result.output, result.restarted) == (b"[]\n/\n", False)


def test_the_same_commands_give_the_same_outputs(sandbox: Sandbox) -> None:
    commands = [
        "env | sort",
        "ls -la",
        "nope",
        "id",
        "locale",
        "date +%Z",
        "python3 -c 'print(hash(\"a\"))'",
        "echo $-",
    ]
    assert sandbox.run("exit").restarted
    first = [sandbox.run(command).output for command in commands]
    assert sandbox.run("exit").restarted
    assert [sandbox.run(command).output for command in commands] == first
