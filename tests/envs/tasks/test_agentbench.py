"""AgentBench's questions: what is read, how answers are compared, and that gold commands are accepted."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from obsspec_gym.envs.check import check_suite, summary
from obsspec_gym.envs.tasks import Suite, get_suite
from obsspec_gym.envs.tasks.agentbench import AgentBenchSuite
from obsspec_gym.envs.tasks.compare import COMPARE
from obsspec_gym.envs.terminal import TerminalEnv
from obsspec_gym.errors import InvalidArgumentError

SHIPPED = Path(__file__).parents[3] / "envs" / "agentbench" / "tasks.jsonl"


def record(**changes: Any) -> dict[str, Any]:
    """A task of the file."""
    check = [None, {"language": "python", "file": "check/integer-match.py"}]
    return {
        "id": "x1",
        "description": "How many?",
        "create": {"init": "echo 1 > /srv/one"},
        "evaluation": {"check": check, "example": "cat /srv/one"},
    } | changes


def suite_of(path: Path, *records: dict[str, Any]) -> AgentBenchSuite:
    path.write_text("".join(f"{json.dumps(each)}\n" for each in records))
    return AgentBenchSuite(path)


def test_a_file_is_read_as_tasks(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl.gz"
    path.write_bytes(gzip.compress("\n\n".join(json.dumps(record(id=i)) for i in "abc").encode()))
    suite = get_suite(f"agentbench:{path}")
    assert isinstance(suite, Suite)
    assert (len(suite), suite.name) == (3, f"agentbench:{path}")
    task = suite.task(1)
    assert task.id == "agentbench/b"
    assert task.instruction == "How many?\n\nHand in your answer with: submit ANSWER"
    assert task.image is not None
    assert (task.image.user, task.image.workdir, task.image.build) == ("root", "/root", "")
    assert "cat /srv/one" in task.gold
    assert "cat /srv/one" not in str(task.verifier_files)
    assert suite.judged_after == ()
    with pytest.raises(InvalidArgumentError, match=r"in \[0, 3\)"):
        suite.task(3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"evaluation": {"check": [None, {"file": "check/other.py"}], "example": "x"}}, "checks are integer-match"),
        ({"evaluation": {"check": [None], "example": "x"}}, "expected check to be"),
        ({"evaluation": {"check": [None, {"file": "check/integer-match.py"}], "example": " "}}, "a gold command"),
        ({"id": None}, "needs an id, a text or a number, got None"),
        ({"id": ""}, "needs an id, a text or a number, got ''"),
        ({"evaluation": {}}, "KeyError"),
        ({"create": {"init": {"language": "python", "code": "x"}}}, "bash code"),
        ({"evaluation": {"match": 3}}, "expected match to be"),
        ({"description": None}, "record 'x1'"),
    ],
)
def test_a_record_that_is_no_task_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        suite_of(tmp_path / "tasks.jsonl", record(**changes))


def test_two_records_with_one_id_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"must be unique, got 'agentbench/7' more than once"):
        suite_of(tmp_path / "tasks.jsonl", record(id=7), record(id="x"), record(id="7"))


@pytest.mark.parametrize("content", [b"", b"[1]\n", b"{\n", b"\x1f\x8bnot", b"\xff"])
def test_a_file_that_is_none_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(InvalidArgumentError, match="JSON"):
        AgentBenchSuite(tmp_path / "file")


def test_the_expert_runs_gold_and_hands_in_what_it_prints(tmp_path: Path) -> None:
    suite = suite_of(tmp_path / "tasks.jsonl", record(), record(id="x2", evaluation={"match": "4"}))
    expert = suite.expert(suite.task(0))
    assert next(expert) == "bash -c 'cat /srv/one' 2>/dev/null"
    assert expert.send("1\n2 \n[exit 0] ~") == "submit 1\n2"
    with pytest.raises(InvalidArgumentError, match="no gold command"):
        suite.expert(suite.task(1))


@pytest.mark.parametrize(
    ("kind", "expected", "answer", "accepted"),
    [
        ("integer", "4\n", " 4 ", True),
        ("integer", "4\n", "04", True),
        ("integer", "4\n", "5", False),
        ("integer", "4\n", "4.0", False),
        ("integer", "4\n", "", False),
        ("integer", "", "", False),
        ("integer", "4\n5\n", "4\n5", False),
        ("string", "a b\n", "a b", True),
        ("string", "a b\n", "a  b", False),
        ("exact", "a", "a ", False),
        ("string", "\n", "", False),
        ("exact", "", "", False),
        ("regex", ".*", "", False),
        ("size", "3.0M\n", "3MB", True),
        ("size", "3MB", "3072 KB", True),
        ("size", "3MiB", "3145728 bytes", True),
        ("size", "12K", "12", True),
        ("size", "12K", "13K", False),
        ("size", "12K", "12M", False),
        ("size", "", "", False),
        ("size", "a", "a", False),
        ("regex", "a.c\n", "abc", True),
        ("regex", "a.c", "xabc", False),
    ],
)
def test_answers_are_compared_as_the_check_says(
    tmp_path: Path, kind: str, expected: str, answer: str, accepted: bool
) -> None:
    (tmp_path / "compare.py").write_text(COMPARE)
    (tmp_path / "expected").write_text(expected)
    words = [sys.executable, "-I", str(tmp_path / "compare.py"), kind, str(tmp_path / "expected")]
    done = subprocess.run(words, env={**os.environ, "ANSWER": answer}, capture_output=True, text=True, timeout=60)
    assert (done.returncode == 0) is accepted
    assert accepted or done.stderr.count("\n") == 1


@pytest.mark.usefixtures("needs_image")
def test_the_scene_is_set_as_root_and_answers_are_judged(tmp_path: Path) -> None:
    gold = {
        "evaluation": {"check": record()["evaluation"]["check"], "example": {"code": "cat /srv/one /root/two | wc -l"}}
    }
    init = {"code": "echo 1 > /srv/one\necho 2 > ~/two\nwhoami > who\nfalse"}
    path = tmp_path / "tasks.jsonl"
    match = {"evaluation": {"match": {"regex": "t[wo]+"}}, "id": "x2"}
    suite_of(path, record(create={"init": init}, start="sleep 1000 &", **gold), record(**match))
    env = TerminalEnv(f"agentbench:{path}")
    try:
        for task, action, reward in (
            (0, "submit 2", 1.0),
            (0, "submit 3", 0.0),
            (1, "submit two", 1.0),
            (1, "submit", 0.0),
        ):
            env.reset(options={"task": task})
            if task == 0:
                assert env.step("cat who two; pgrep -c sleep; touch /usr/bin/x")[0] == "root\n2\n1\n[exit 0] ~"
            assert env.step(action)[1] == reward
    finally:
        env.close()


@pytest.mark.usefixtures("needs_image")
def test_what_an_agent_does_changes_nothing_of_what_is_expected(tmp_path: Path) -> None:
    """Neither to the scene nor, being root, to the programs that compare; only gold that is run after can be fooled."""
    count = {"init": {"code": "mkdir ~/logs; gzip -c /etc/hostname > ~/logs/a.gz"}}
    check = record()["evaluation"]["check"]
    gold = {"check": check, "example": "gunzip ~/logs/*.gz; ls ~/logs | wc -l"}
    path = tmp_path / "tasks.jsonl"
    records = [
        record(create=count, evaluation=gold),
        record(id="x2", create=count, evaluation=gold | {"when": "after"}),
    ]
    suite = suite_of(path, *records)
    assert suite.judged_after == ("agentbench/x2",)
    env = TerminalEnv(suite)
    sabotage = "rm -rf ~/logs; for p in /usr/bin/python3*; do ln -sf /bin/true $p; done; echo /x.so >/etc/ld.so.preload"
    try:
        for task, command, action, reward in (
            (0, sabotage, "submit 0", 0.0),
            (0, sabotage, "submit 1", 1.0),
            (1, "true", "submit 1", 1.0),
            (1, "rm -rf ~/logs", "submit 0", 1.0),
        ):
            env.reset(options={"task": task})
            assert env.step("ls logs; ls -A /dev/shm; ls -A /tmp")[0] == "a.gz\n[exit 0] ~"
            env.step(command)
            assert env.step(action)[1] == reward
    finally:
        env.close()


@pytest.mark.parametrize(
    ("init", "gold", "cause"),
    [
        ("true", "nosuchprogram /srv | wc -l", "the gold command failed (exit status 127)"),
        ("true", "cat /nowhere", "the gold command printed nothing"),
        ("true", "printf '\\n \\n'", "the gold command printed nothing"),
        ("nosuchprogram", "echo 1", "the setup failed (exit status 127)"),
        ("nosuchprogram; echo 1 > one", "echo 1", "the setup failed (exit status 127)"),
        ("/etc/passwd", "echo 1", "the setup failed (exit status 126)"),
        ("grep x /etc/hostname; nosuch 2>/dev/null; sleep 1000 &", "echo 1", ""),
    ],
)
@pytest.mark.usefixtures("needs_image")
def test_a_scene_that_cannot_be_set_and_gold_that_is_none_are_counted(
    tmp_path: Path, init: str, gold: str, cause: str
) -> None:
    evaluation = record()["evaluation"] | {"example": gold}
    suite = suite_of(tmp_path / "tasks.jsonl", record(create={"init": init}, evaluation=evaluation))
    checks = check_suite(suite, [0], before=False)
    assert summary(checks)["refused_by_cause"] == ({cause: 1} if cause else {})
    assert (checks[0].after == 1) is not bool(cause)
    assert cause != "the setup failed (exit status 127)" or "nosuchprogram: command not found" in checks[0].refused


@pytest.mark.usefixtures("needs_image")
def test_gold_commands_are_accepted_wherever_they_print_what_is_asked_for() -> None:
    suite = AgentBenchSuite(SHIPPED)
    checks = check_suite(suite, range(len(suite)), before=False)
    assert len(checks) == 8
    (refused,) = [done for done in checks if done.refused]
    assert [done.task_id for done in checks if done.after == 1] == [
        done.task_id for done in checks if done is not refused
    ]
    # There is no log in /var/log.
    assert refused.refused == "the gold command printed nothing: task agentbench/agentbench_os_0147"
