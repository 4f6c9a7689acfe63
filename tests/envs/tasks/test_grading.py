"""Every family's verdict, on every kind of sandbox: nothing that an agent leaves leads to what is expected."""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Callable
from dataclasses import replace

import pytest

from obsspec_gym.envs.command import submitted_answer
from obsspec_gym.envs.observation import ObservationFormat
from obsspec_gym.envs.sandbox import Sandbox
from obsspec_gym.envs.scene import Verdict, judge, prepare
from obsspec_gym.envs.tasks import FAMILIES, Demonstrator, Task, get_suite
from obsspec_gym.envs.tasks.family import OWN_FILES

# What of a solved scene the verifier looks at.
JUDGED = {
    "tests": "*.sh",
    "build": "app *.fn",
    "config": "*.conf",
    "csv": "clean.csv",
    "git": "{file}",
    "permissions": "$(cut -d' ' -f2 policy)",
    "archive": "{path}",
    "package": "VERSION manifest src/* dist/*",
    "rename": "items/* items/*/*",
    "ini": "*.ini",
    "replace": "src/*/*",
    "usage": "disk/* disk/*/*",
    "cron": "crontab",
    "order": "order",
}
ANSWERED = {"count", "logs"}
"""Families whose verifier looks at the answer only."""

# One line each that puts something else in the place of the file $1, or of the directory it is in.
SUBSTITUTES = {
    "a link to what is expected": 'rm "$1"; ln -s "/verifier/files/$(basename "$1")" "$1"',
    "a link to where it may lie": 'rm "$1"; ln -s /verifier/files/expected "$1"',
    "a link to a copy": 'mv "$1" .kept; ln -s "$PWD/.kept" "$1"',
    "a second name": 'ln "$1" .kept',
    "a pipe": 'rm "$1"; mkfifo "$1"',
    "a device": 'rm "$1"; ln -s /dev/zero "$1"',
    "a descriptor": 'rm "$1"; ln -s /proc/self/fd/0 "$1"',
    "a directory": 'rm "$1"; mkdir "$1"',
    "a link on the way": 'd=$(dirname "$1"); [ "$d" = . ] && rm "$1"; [ "$d" = . ] || { mv "$d" .kept; ln -s "$PWD/.kept" "$d"; }',  # noqa: E501
}

SPY = """
{ env; p=$$
  for _ in 1 2 3 4; do
    [ "$p" -gt 1 ] || break
    cat /proc/$p/environ /proc/$p/cmdline
    for f in /proc/$p/fd/*; do [ -f "$f" ] && head -c 100000 "$f"; done
    p=$(cut -d" " -f4 /proc/$p/stat)
  done
  for d in "$VERIFIER" "$VERIFIER"/.. /verifier/files /verifier/*/files ../verifier; do grep -rs . "$d"; done
} >> ~/loot 2> /dev/null
"""


def solved(sandbox: Sandbox, task: Task) -> str:
    """Lets the expert solve a task; returns what it hands in."""
    prepare(sandbox, task)
    expert, transcript = Demonstrator(task), list[tuple[str, str]]()
    while (answer := submitted_answer(command := expert(transcript))) is None:
        result = sandbox.run(command, task.timeout)
        transcript.append((command, ObservationFormat().format(result, sandbox.workdir, task.timeout)))
    return answer


def judged_task(family: str) -> Task:
    """A task of a family whose files are looked at."""
    suite = get_suite(f"terminal/{family}", work=0.05)
    tasks = (suite.task(index) for index in range(100))
    return next(task for task in tasks if OWN_FILES in task.verifier + task.trial)


@pytest.fixture
def solve(sandbox: Sandbox) -> Callable[[str], tuple[Task, str, str]]:
    """Solves a task of a family; returns it, the answer, and the first file that is judged."""

    def begin(family: str) -> tuple[Task, str, str]:
        task = judged_task(family)
        if sandbox.run(f"command -v true {shlex.join(task.requires)}").exit_code != 0:
            pytest.skip(f"not here: {', '.join(task.requires)}")
        answer = solved(sandbox, task)
        pattern = JUDGED[family].format(**Demonstrator(task)._scene.facts)
        listed = sandbox.run(f"cd; for f in {pattern}; do [ -f $f ] && echo $f; done").output.decode().split()
        return task, answer, listed[0]

    return begin


def test_every_family_is_told_what_it_looks_at() -> None:
    assert set(JUDGED) | ANSWERED == set(FAMILIES)


@pytest.mark.parametrize("family", JUDGED)
def test_only_the_agents_own_files_count(
    family: str, sandbox: Sandbox, solve: Callable[[str], tuple[Task, str, str]]
) -> None:
    task, answer, path = solve(family)
    sandbox.run("rm -rf /tmp/before; cp -a ~ /tmp/before")

    def attempt(substitute: str) -> Verdict:
        sandbox.run("cd; find . -mindepth 1 -delete; cp -a /tmp/before/. .")
        assert sandbox.run(f"cd; set -- {path}; {substitute}").exit_code == 0
        return judge(sandbox, task, answer)

    assert attempt("true").reward == 1.0
    for name, substitute in SUBSTITUTES.items():
        verdict = attempt(substitute)
        assert verdict.reward == 0.0, name
        assert verdict.seconds < task.verifier_timeout, name
    sandbox.run("rm -rf /tmp/before")


@pytest.mark.parametrize("family", FAMILIES)
def test_what_an_agent_wrote_never_runs_where_something_is_expected(family: str, sandbox: Sandbox) -> None:
    suite = get_suite(f"terminal/{family}", work=0.05)
    task = judged_task(family) if family in JUDGED else suite.task(0)
    if sandbox.run(f"command -v true {shlex.join(task.requires)}").exit_code != 0:
        pytest.skip(f"not here: {', '.join(task.requires)}")
    solved(sandbox, task)
    spy = shlex.quote(SPY)
    plant = 'find . -type f -not -path "./.git/*" | while read -r f; do case $f in *.sh | ./app | *.fn) :;; *) '
    plant += '[ "$(head -c 2 "$f")" = "#!" ] || continue;; esac; '
    sandbox.run(f'cd; {plant} printf "#!/bin/bash\\n%s\\n" {spy} > "$f"; done')
    secret = secrets.token_hex(16)
    expected = {"answer": task.answer and secret, "tried": secret}
    judge(sandbox, replace(task, verifier_files=dict.fromkeys(task.verifier_files, f"{secret}\n"), **expected), secret)
    loot = sandbox.run("cat ~/loot").output
    assert (b"PATH=" in loot) is bool(task.trial)
    assert secret.encode() not in loot
