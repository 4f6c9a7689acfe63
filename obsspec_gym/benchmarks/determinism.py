"""Which everyday commands show something else when they are run a second time, and what helps against it.

Each command runs in two fresh sandboxes of its own, at least a second apart, in four ways: ``plain``, without
isolation; ``reproducible``, in bubblewrap; ``frozen``, there with a clock that stands still; ``canonical``, the same
with masked observations. ``masked`` is ``canonical`` with a clock that runs. Only what can be foretold can be
predicted, so every command that does not differ is one more whose tool time can be hidden.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from obsspec_gym.envs.observation import ObservationFormat
from obsspec_gym.envs.sandbox import CommandResult, Sandbox, make_sandbox
from obsspec_gym.envs.sandbox.frozen_clock import frozen_clock_available
from obsspec_gym.envs.sandbox.local import NoIsolationWarning
from obsspec_gym.envs.sandbox.programs import missing_programs
from obsspec_gym.errors import InvalidArgumentError

DEFAULTS: dict[str, Any] = {"gap": 1.1}
FULL: dict[str, Any] = {"gap": 61.0}

FILES: Mapping[str, str] = {
    "hello.c": '#include <stdio.h>\nint main(void) { printf("%s\\n", "hello"); return 0; }\n',
    "warns.c": '#include <stdio.h>\nint main(void) { int unused; printf("%d\\n", "hello"); return 0; }\n',
    "lacks.c": "int missing(void);\nint main(void) { return missing(); }\n",
    "fails.py": "def half(x):\n    return x / 0\n\nprint(half(3))\n",
    "test_one.py": "import unittest\n\nclass One(unittest.TestCase):\n    def test_sum(self):\n"
    "        self.assertEqual(1 + 1, 2)\n",
    "Makefile": "all: hello\nhello: hello.c\n\tcc -o hello hello.c\n",
    "words.txt": "pear\napple\nplum\napple\n",
}

_AS_AGENT = "git -c user.name=agent -c user.email=agent@example.org"
_REPOSITORY = f"git init -q -b main . && git add *.c && {_AS_AGENT} commit -q -m start"
"""What was run before a command that is about a repository."""

COMMANDS: Sequence[str] = (
    "pwd",
    "whoami; id",
    "hostname; uname -n",
    "uname -a",
    "env | sort",
    "ls",
    "ls -la",
    "touch new && ls -l --full-time new",
    "ls -i words.txt",
    "stat words.txt",
    "find . -type f",
    "ls -U",
    "du -s .",
    "du -ah",
    "df -h .",
    "wc -l *.c",
    "md5sum words.txt",
    "sort words.txt | uniq -c",
    "tar -cf - words.txt | md5sum",
    "tar -czf all.tgz *.c && tar -tvf all.tgz",
    "touch fresh && gzip -k fresh && md5sum fresh.gz",
    "date",
    "date +%s",
    "date +%s%N",
    "uptime",
    "cat /proc/uptime",
    "free -m",
    "nproc",
    "time true",
    "time sleep 0.1",
    "dd if=/dev/zero of=zeros bs=1k count=100",
    "ps",
    "ps aux",
    "echo $$ $PPID",
    "sleep 0.01 & echo $!; wait",
    "sleep 9 & kill -9 $!; wait",
    "cut -d' ' -f1 /proc/self/stat",
    "echo $RANDOM $RANDOM",
    "echo $SECONDS $EPOCHSECONDS",
    "shuf -i 1-1000 -n 3",
    "awk 'BEGIN {srand(); print rand()}'",
    "head -c 8 /dev/urandom | od -An -tx1",
    "cat /proc/sys/kernel/random/uuid",
    "mktemp",
    "mktemp -d",
    "cd $(mktemp -d)",
    "cd",
    'python3 -c "import time; print(time.time())"',
    'python3 -c "import datetime; print(datetime.datetime.now())"',
    "python3 -c \"print(hash('word'))\"",
    "python3 -c \"print({'one', 'two', 'three'})\"",
    'python3 -c "print(object())"',
    'python3 -c "print(id(object()))"',
    'python3 -c "import random; print(random.random())"',
    'python3 -c "import os; print(os.listdir())"',
    'python3 -c "import tempfile; print(tempfile.mkdtemp())"',
    "python3 fails.py",
    "python3 -m unittest",
    'python3 -m timeit -n 10 -r 1 "sum(range(100))"',
    "gcc -o hello hello.c && ./hello",
    "gcc -o warns warns.c",
    "gcc -o lacks lacks.c",
    "make -B",
    "git add *.py && git status --short",
    f"{_AS_AGENT} commit --allow-empty -m more",
    "git log",
    "git log --oneline",
    "git rev-parse HEAD",
    "echo '/* more */' >> hello.c && git diff",
    "git stash list; git status",
)

_PROGRAMS = ("ps", "python3", "gcc", "make", "git", "free", "uptime", "hostname")
_SECONDS = 20.0

Run = list[tuple[CommandResult, str]]
"""What each command did, and where home was."""


def run(*, gap: float, report: Any) -> dict[str, Any]:
    """Runs every command twice in each way.

    Args:
        gap: Seconds between the starts of the two runs, at least.
        report: Is told about progress.

    Returns:
        ``commands`` (how many), ``missing`` (programs that were not there, whose commands are left out), and for each
        way ``differ`` (how many commands showed something else) and ``commands`` (which).

    Raises:
        SandboxUnavailableError: If there is no bubblewrap.
    """
    if gap < 0:
        raise InvalidArgumentError(f"gap must be >= 0 seconds, got {gap}")
    with _fresh("bubblewrap", {}) as sandbox:
        missing = missing_programs(sandbox, _PROGRAMS)
    commands = [command for command in COMMANDS if not _needs(command) & set(missing)]
    report(f"{len(commands)} commands")
    running, masked = ObservationFormat(), ObservationFormat(canonical=True)
    result: dict[str, Any] = {"commands": len(commands), "missing": missing}
    result["plain"] = _differences(commands, _twice("local", {}, commands, gap), running)
    report(f"plain: {result['plain']['differ']} differ")
    reproducible = _twice("bubblewrap", {}, commands, gap)
    result["reproducible"] = _differences(commands, reproducible, running)
    report(f"reproducible: {result['reproducible']['differ']} differ")
    frozen = reproducible
    result["frozen_clock"] = frozen_clock_available() or "available"
    if result["frozen_clock"] == "available":
        frozen = _twice("bubblewrap", {"frozen_clock": True}, commands, gap)
    result["frozen"] = _differences(commands, frozen, running)
    report(f"frozen: {result['frozen']['differ']} differ")
    result["masked"] = _differences(commands, reproducible, masked)
    result["canonical"] = _differences(commands, frozen, masked)
    report(f"canonical: {result['canonical']['differ']} differ")
    return result


def _needs(command: str) -> set[str]:
    return {name for name in _PROGRAMS if name in command.split()} | ({"gcc"} if command.startswith("make") else set())


def _twice(kind: str, options: Mapping[str, Any], commands: Sequence[str], gap: float) -> tuple[Run, Run]:
    began = time.monotonic()
    first = _run_once(kind, options, commands)
    time.sleep(max(0.0, began + gap - time.monotonic()))
    return first, _run_once(kind, options, commands)


def _run_once(kind: str, options: Mapping[str, Any], commands: Sequence[str]) -> Run:
    """Runs each command in a fresh sandbox of its own."""
    return [_run_in_fresh(kind, options, command) for command in commands]


@contextlib.contextmanager
def _fresh(kind: str, options: Mapping[str, Any]) -> Iterator[Sandbox]:
    with contextlib.closing(make_sandbox(kind, **options)) as sandbox:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NoIsolationWarning)
            sandbox.start()
        yield sandbox


def _run_in_fresh(kind: str, options: Mapping[str, Any], command: str) -> tuple[CommandResult, str]:
    with _fresh(kind, options) as sandbox:
        sandbox.write(FILES)
        if "git" in _needs(command):
            sandbox.run(_REPOSITORY, _SECONDS)
        return sandbox.run(command, _SECONDS), sandbox.workdir


def _differences(commands: Sequence[str], runs: tuple[Run, Run], layout: ObservationFormat) -> dict[str, Any]:
    first, second = ([layout.format(result, home, _SECONDS) for result, home in each] for each in runs)
    which = [command for command, a, b in zip(commands, first, second, strict=True) if a != b]
    return {"differ": len(which), "commands": which}
