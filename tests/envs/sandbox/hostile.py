"""Hostile commands: one table for all kinds of sandbox.

Each case is one command with what it must print, its exit status and what the *next* command must see. ``unlike``
holds the fields that differ on a kind of sandbox, ``only`` the kinds that a case may be run on, both with the reason
beside them: what a kind cannot promise stands here, and in ``docs/sandboxes.md``.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

CONTAINED = ("bubblewrap", "docker")
"""The kinds whose processes see no others than their own."""

ANY = "any"
"""An exit status on which versions of bash do not agree."""


@dataclass(frozen=True, slots=True)
class Case:
    """One command.

    Attributes:
        command: What is run.
        output: What it must print, exactly; ``re:`` begins a regular expression, ``{home}`` is the home directory.
        exit_code: None where it must be stopped at its timeout.
        then: What runs next.
        sees: What ``then`` must print.
        restarted: Whether the shell must have been started anew; None where versions of bash differ.
        timeout: Seconds.
        cwd: The directory it must end in, where that is of interest.
        only: The kinds of sandbox to run it on; all if empty.
        unlike: Kind of sandbox -> the fields that differ there.
    """

    command: str
    output: str = ""
    exit_code: int | Literal["any"] | None = 0
    then: str = "echo clean; pwd"
    sees: str = "clean\n{home}\n"
    restarted: bool | None = False
    timeout: float = 20.0
    cwd: str | None = None
    only: tuple[str, ...] = ()
    unlike: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def on(self, kind: str) -> Case:
        """The case as it is on a kind of sandbox."""
        return dataclasses.replace(self, **self.unlike.get(kind, {}))


def stopped(command: str, output: str = "", *, restarted: bool | None = False, **more: Any) -> Case:
    """A command that has to be stopped at its timeout."""
    return Case(command, output, None, restarted=restarted, timeout=0.4, **more)


def matches(expected: str, output: bytes, home: str) -> bool:
    """Whether a command printed what it must; see :class:`Case`."""
    text = output.decode("utf-8", "surrogateescape")
    if expected.startswith("re:"):
        return re.fullmatch(expected[3:].replace("{home}", re.escape(home)), text, re.DOTALL) is not None
    return text == expected.replace("{home}", home)


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
    "unterminated substitution": Case('a=1; echo "$(ls', "re:.*unexpected EOF.*", 2),
    "unterminated substitution in a file": Case("echo 'echo $(ls' >f; . ./f; true", "re:.*unexpected EOF.*", ANY),
    "unterminated process substitution": Case("cat <(ls", "re:.*unexpected EOF.*", 2),
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
    "trailing and": Case("echo a &&", "re:.*syntax error: unexpected end of file\\n", 2),
    "unterminated backtick": Case("echo `ls", "re:.*unexpected EOF while looking for matching ``'\\n", 2),
    "unterminated arithmetic": Case("echo $((1 + ", "re:.*unexpected EOF.*", "any", restarted=None),
    "unterminated function": Case("f() {", "re:.*syntax error: unexpected end of file\\n", 2),
    "unterminated case": Case("case a in", "re:.*syntax error.*", 2),
    "only an ampersand": Case("&", "re:.*syntax error near unexpected token `&'.*", 2),
    "two semicolons": Case(";;", "re:.*syntax error near unexpected token `;;'.*", 2),
    "here-string of nothing": Case("cat <<<", "re:.*syntax error near unexpected token `newline'.*", 2),
    "Windows line ends": Case("echo a\r\necho b\r\n", "a\r\nb\r\n"),
    "line continuation": Case("echo a \\\n b", "a b\n"),
    "tabbed here-document": Case("cat <<-END\n\ta\n\tEND", "a\n"),
    "byte order mark": Case("\ufeffecho a", "bash: \ufeffecho: command not found\n", 127),
    "no-break space": Case("echo\u00a0a", "bash: echo\u00a0a: command not found\n", 127),
    "typographic quotes": Case("echo \u201ca  b\u201d", "\u201ca b\u201d\n"),
    "prompt sign": Case("$ ls", "bash: $: command not found\n", 127),
    "fenced block": Case("```bash\necho a\n```", "bash: a: command not found\n", 127),
    "control characters": Case("echo 'a\x01b\x7fc\x03\x04\x1b[A'", "a\x01b\x7fc\x03\x04\x1b[A\n"),
    "deep nesting": Case("{ " * 400 + "echo a" + "; }" * 400, "a\n"),
    "long pipeline": Case("echo a" + " | cat" * 60, "a\n"),
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
    "nothing but NULs": Case("head -c 70000 /dev/zero | tail -c 3", "\0\0\0"),
    "fake status line": Case(
        "printf '[exit 0] ~\\n[... 9 bytes elided ...]\\n'", "[exit 0] ~\n[... 9 bytes elided ...]\n"
    ),
    "character sets": Case("printf '\\016lqk\\017\\033(0lqk\\033(B'", "\x0elqk\x0f\x1b(0lqk\x1b(B"),
    "screen cleared": Case("printf '\\033c\\033[2J\\033[?1049h'", "\x1bc\x1b[2J\x1b[?1049h"),
    "backspaces": Case("printf 'abc\\b\\b'", "abc\b\b"),
    "odd file names": Case("touch $'\\x96' $'a\\nb'; ls", "a\nb\n\udc96\n"),
    "output by name": Case(
        "echo a >/dev/stdout; echo b >/dev/stderr; echo c | tee /dev/stderr >/dev/null; echo d >/proc/self/fd/1",
        "a\nb\nc\nd\n",
    ),
    "full device": Case("echo a >/dev/full", "bash: echo: write error: No space left on device\n", 1),
    "NUL in a substitution": Case(
        "x=$(printf 'a\\0b'); echo $x", "bash: warning: command substitution: ignored null byte in input\nab\n"
    ),
    "reader that leaves": Case("yes | head -c 300000 | tail -c 2", "y\n"),
    # What it reads.
    "reading stdin": Case("cat; read x; echo \"got '$x' $?\"", "got '' 1\n"),
    "python reads stdin": Case("wc -c", "0\n"),
    "stdin is the null device": Case("readlink /proc/self/fd/0", "/dev/null\n"),
    "no terminal": Case("tty; (exec </dev/tty) 2>/dev/null || echo none", "not a tty\nnone\n"),
    "descriptors of a child": Case("ls /proc/self/fd | tr '\\n' ' '", "0 1 2 203 3 "),
    "python asks": Case("python3 -c 'input()'", "re:.*EOFError: EOF when reading a line\\n", 1),
    "reads the terminal": Case("read x </dev/tty", "bash: /dev/tty: No such device or address\n", 1),
    "terminal settings": Case("stty", "stty: 'standard input': Inappropriate ioctl for device\n", 1),
    "menu": Case("select x in a b; do echo $x; break; done", "1) a\n2) b\n#? \n", 1),
    "shell in the shell": Case("bash"),
    "interactive shell in the shell": Case("bash --norc -i", "re:.*exit\\n"),
    "job control": Case("fg", "bash: fg: no job control\n", 1),
    "suspend": Case("suspend", "bash: suspend: cannot suspend: no job control\n", 1),
    "logout": Case("logout", "bash: logout: not login shell: use `exit'\n", 1),
    "coprocess": Case("coproc cat; kill %1; wait; echo on", "on\n"),
    "process substitution": Case("cat <(echo a)", "a\n"),
    "background job reads": Case("cat & wait; echo on", "on\n"),
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
    "directory with an odd name": Case(
        "mkdir $'\\x96\\n' && cd $'\\x96\\n'", cwd="{home}/\udc96\n", then="pwd", sees="{home}/\udc96\n\n"
    ),
    "directory gone at a restart": Case("mkdir x && cd x && rmdir ../x && exit", restarted=True),
    "restricted shell": Case("set -r", then="echo on; cd /", sees="on\nbash: cd: restricted\n"),
    "POSIX mode": Case("set -o posix", then="shopt -qo posix && echo posix", sees="posix\n"),
    "no execution": Case("set -n"),
    "verbose": Case("set -v", then="echo a", sees="echo a\na\n"),
    "monitor mode": Case("set -m; sleep 0.01; echo a", "a\n"),
    "every option": Case("set -abhkpBCET; set -o pipefail -o vi; shopt -s dotglob nullglob failglob globstar"),
    "every variable unset": Case("unset -v $(compgen -v) 2>/dev/null; :"),
    "unknown locale": Case(
        "export LC_ALL=xx_YY.nope", "re:.*cannot change locale.*", then="echo \u00e9", sees="\u00e9\n"
    ),
    "readonly directory": Case(
        "readonly PWD OLDPWD; cd /", "re:.*PWD: readonly variable\n", 1, then="builtin pwd -P", sees="/\n"
    ),
    "preloaded library": Case(
        "export LD_PRELOAD=/nope.so", then="echo on; true; /bin/true", sees="re:on\\n.*LD_PRELOAD cannot be preloaded.*"
    ),
    "environment too long": Case(
        "export X=$(printf '%3000000s')", then="ls; echo on", sees="bash: /usr/bin/ls: Argument list too long\non\n"
    ),
    "temporary directory": Case("export TMPDIR=/nowhere", then="cat <<<a", sees="a\n"),
    "many background jobs": Case("for i in {1..60}; do sleep 5 & done; jobs | wc -l", "60\n"),
    "history": Case("history"),
    # Loops and jumps that could leave ours.
    "break": Case("break; echo on", "re:.*only meaningful in.*\non\n"),
    "continue": Case("continue 99; echo on", "re:.*only meaningful in.*\non\n"),
    "return": Case("return 3; echo not reached", "", 3),
    "unset variable": Case("set -u; echo $nope; echo no", "bash: nope: unbound variable\n", 1),
    "required parameter": Case("echo ${nope:?missing}", "bash: nope: missing\n", 1),
    "readonly": Case("readonly r=1; r=2; echo no", "bash: r: readonly variable\n", 1),
    "not found": Case("nope_nope", "bash: nope_nope: command not found\n", 127),
    "directory as program": Case("/", "bash: /: Is a directory\n", 126),
    "return of nonsense": Case("return abc", "bash: return: abc: numeric argument required\n", 2),
    "exit in a pipe": Case("echo a | exit 3", "", 3),
    "recursion": Case("bash -c 'ulimit -s 256; f() { f; }; f'", "re:.*", 139),
    "error in POSIX mode": Case("set -o posix; readonly q=1; q=2; echo no", "bash: q: readonly variable\n", 1),
    "link to itself": Case("ln -s x x; cat x", "cat: x: Too many levels of symbolic links\n", 1),
    "name too long": Case("touch $(printf '%0300d')", "re:touch: .*File name too long\\n", 1),
    "file named like an option": Case("touch -- -rf; rm *", then="ls", sees="-rf\n"),
    "directory as a file": Case("cat .", "cat: .: Is a directory\n", 1),
    "home without permissions": Case("chmod 000 .", then="chmod 755 /proc/self/cwd; cd; pwd", sees="{home}\n"),
    "home removed": Case(
        "rm -rf ~",
        "rm: cannot remove '{home}': Read-only file system\n",
        1,
        unlike={"local": {"output": "", "exit_code": 0, "then": "pwd; mkdir ~; cd .; cd"}},  # an ordinary directory
        then="pwd",
        sees="{home}\n",
    ),
    # Things that touch the shell itself.
    "exit": Case("cd /; v=1; exit 3", "", 3, restarted=True, then='echo "[$v]"; pwd', sees="[]\n{home}\n"),
    "exit in the last directory": Case("exit", restarted=True),
    "exec": Case("exec bash -c 'echo replaced'", "replaced\n", restarted=True),
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
    "exit of nonsense": Case("exit abc", "bash: exit: abc: numeric argument required\n", 2, restarted=True),
    "exec of a shell": Case("exec bash", restarted=True),
    "exec without an environment": Case("exec -c env", restarted=True),
    "hangup": Case("kill -HUP $$; sleep 1", "", 129, restarted=True),
    "broken pipe": Case("kill -PIPE $$; sleep 1", "re:.*", 141, restarted=True),
    "alarm": Case("kill -ALRM $$; sleep 1", "re:.*", 142, restarted=True),
    "user signal": Case("kill -USR1 $$; sleep 1", "re:.*", 138, restarted=True),
    "signals that shells ignore": Case("for s in QUIT TSTP TTIN TTOU CHLD CONT WINCH TERM; do kill -$s $$; done"),
    "process group": Case("kill -9 0", "", 137, restarted=True),
    # Elsewhere it would be every process of the user, and the parent would be the supervisor.
    "every process": Case("kill -9 -1; echo on", "re:.*on\n", only=CONTAINED),
    "its parent": Case(
        "kill -9 $PPID; echo on",
        "on\n",
        only=CONTAINED,
        # Its parent is outside of the container, which is 0 for kill: the shell's own group.
        unlike={"docker": {"output": "", "exit_code": 137, "restarted": True}},
    ),
    "limit on open files": Case("ulimit -n 3", "re:.*", ANY, restarted=True),
    "limit on file sizes": Case("ulimit -f 0; echo a >f", "re:.*", 153, restarted=True),
    "limit on memory": Case("ulimit -v 1; ls", "re:.*", ANY, then="echo on", sees="on\n"),
    "all descriptors used": Case("ulimit -n 64; while exec {f}>/dev/null; do :; done", "re:.*", ANY, restarted=None),
    "prompt that exits": Case("PROMPT_COMMAND='exit 3'", "", 3, restarted=True),
    "end of file ignored": Case("IGNOREEOF=9999999; trap '' HUP TERM"),
    "report forged by the shell": Case(
        r"for f in {10..20}; do { printf '\0r%s\00042\0/forged\n\0\n' {1..300} >&$f; } 2>/dev/null; done; true",
        "re:.*",
        ANY,
        restarted=None,
    ),
    "report forged by a program": Case(
        "for f in /proc/$$/fd/*; do"
        " timeout 0.1 bash -c 'printf \"\\0r%s\\00042\\0/forged\\n\\0\" {1..300} >$0' $f; done; true",
        "re:.*",
    ),
    "script stolen": Case(
        "for f in {10..20}; do read -r -t 0.05 -u $f x; done 2>/dev/null; true", "", ANY, restarted=None, timeout=2.0
    ),
    "script stolen by a program": Case(
        "for f in /proc/$$/fd/*; do timeout 0.05 cat $f >/dev/null 2>&1; done; true",
        "re:.*",
        ANY,
        restarted=None,
        timeout=3.0,
    ),
    "script injected": Case(
        'for f in /proc/$$/fd/*; do timeout 0.05 bash -c \'echo "echo \\"abc" >$0\' $f; done >/dev/null 2>&1; true',
        "re:.*",
        ANY,
        restarted=None,
        timeout=3.0,
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
    "command of a command": stopped("bash -c 'sleep 20; echo no'; echo no"),
    "command deep down": stopped("bash -c 'bash -c \"sleep 20; echo no\"; echo no'; echo no"),
    "child deep down ignores interrupts": stopped(
        'bash -c \'trap "" INT; bash -c "while :; do sleep 0.1; done"; echo no\''
    ),
    "stops itself": stopped("kill -STOP $$"),
    "child ignores interrupts": stopped("bash -c 'trap \"\" INT; while :; do sleep 0.1; done'"),
    # However what it waits for ends, the rest of a stopped command does not run ...
    "child outlives an interrupt": stopped("bash -c 'trap \"\" INT; sleep 20'; echo no"),
    "child outlives an interrupt, in a function": stopped(
        "f() { bash -c 'trap \"\" INT; sleep 20'; echo no; }; f; echo no\necho no"
    ),
    "child outlives an interrupt, in an or": stopped("bash -c 'trap \"\" INT; sleep 20' || echo no; echo no"),
    "child outlives an interrupt, in eval": stopped('eval \'bash -c "trap \\"\\" INT; sleep 20"; echo no\'; echo no'),
    "child takes an interrupt well": stopped("bash -c 'trap \"exit 0\" INT; sleep 20; :'; echo no"),
    "child takes an interrupt well, in a loop": stopped(
        "for i in 1 2; do bash -c 'trap \"exit 0\" INT; sleep 20; :'; echo no; done; echo no"
    ),
    # ... unless the agent saw to that: by a trap of its own, or without ours.
    "interrupt trap of one's own": stopped("trap 'echo int' INT; sleep 20; echo on", "re:(int\n)+on\n"),
    "our trap taken away": stopped("trap - URG; bash -c 'trap \"\" INT; sleep 20'; echo on", "on\n"),
    "traps are listed": Case("trap", "re:trap -- '[^\n]*' SIGURG\n"),
    "shell ignores interrupts": stopped("trap '' INT; while :; do sleep 0.1; done", restarted=True),
    "waits for a FIFO": stopped("mkfifo p; cat p"),
    "builtin redefined": stopped("builtin() { :; }", restarted=True),
    "read from a sleeping pipe": stopped("sleep 20 | cat"),
    "exec of a sleep": stopped("exec sleep 20", restarted=True),
    "waits for a job": stopped("sleep 20 & wait"),
    "waits for a stopped job": stopped("sleep 20 & kill -STOP $!; wait $!"),
    "monitor mode sleeps": stopped("set -m; sleep 20"),
    "own timeout": Case("timeout 0.1 sleep 5", "", 124),
    "disowned daemon": Case("(setsid bash -c 'exec >/dev/null 2>&1; sleep 5' &); nohup sleep 5 >/dev/null & disown"),
    "loop in an exit trap": stopped("trap 'while :; do :; done' EXIT; exit", restarted=True),
    "loop in an interrupt trap": stopped("trap 'while :; do :; done' INT; sleep 20", restarted=True),
    "sleep in a debug trap": stopped("trap 'sleep 20' DEBUG; :", restarted=None),
    "sleeping prompt": stopped("PS1='$(sleep 20)'", restarted=None, then="PS1=", sees=""),
    "debug trap that skips": stopped("shopt -s extdebug; trap false DEBUG", restarted=True),
    "builtin switched off": stopped("enable -n printf", restarted=True),
    "fork bomb in small": stopped("for i in {1..40}; do (trap '' INT; while :; do sleep 0.2; done) & done; wait"),
}
