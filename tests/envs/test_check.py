"""Checks of suites: what is counted, and under which cause; what is given up ends at once."""

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from obsspec_gym.envs import scenes
from obsspec_gym.envs.check import TaskCheck, check_suite, summary
from obsspec_gym.envs.sandbox.base import CommandResult
from obsspec_gym.envs.sandbox.bubblewrap import BubblewrapSandbox, bubblewrap_available
from obsspec_gym.envs.tasks.task import Expert, Task
from obsspec_gym.errors import InvalidArgumentError


class Mixed:
    """Tasks of every fate."""

    name = "mixed"
    tasks = (
        Task("solved", "", verifier='[ "$ANSWER" = 4 ]'),
        Task("missed", "", verifier="echo 'no: 5'; false"),
        Task("given", "", verifier="true"),
        Task("broken", "", setup="echo why; exit 3"),
        Task("alone", "", verifier="false"),
    )

    def __len__(self) -> int:
        return 6

    def task(self, index: int) -> Task:
        if index == 5:
            raise InvalidArgumentError("task x cannot be built: line 1: no")
        return self.tasks[index]

    def expert(self, task: Task) -> Expert:
        if task.id == "alone":
            raise InvalidArgumentError("there is none")
        return self.run()

    def run(self) -> Expert:
        observation = yield "echo $((2 + 2))"
        yield f"submit {observation.splitlines()[0]}"


def test_each_task_is_tried_before_and_after_and_counted_by_cause() -> None:
    if reason := bubblewrap_available():
        pytest.skip(reason)
    seen: list[TaskCheck] = []
    checks = check_suite(Mixed(), range(6), report=seen.append)
    assert sorted(seen, key=lambda done: done.index) == checks
    assert [(done.task_id, done.before, done.after, done.reason) for done in checks] == [
        ("solved", 0.0, 1.0, ""),
        ("missed", 0.0, 0.0, "no: 5"),
        ("given", 1.0, 1.0, ""),
        ("broken", None, None, ""),
        ("alone", 0.0, None, "no expert: there is none"),
        ("", None, None, ""),
    ]
    assert summary(checks) == {
        "tasks": 6,
        "built": 4,
        "refused_by_cause": {"the setup failed (exit status 3)": 1, "no": 1},
        "unsolved_before": 3,
        "solved_before": 1,
        "without_expert": 1,
        "graded": 3,
        "accepted": 2,
        "rejected_by_cause": {"no": 1},
    }


class Played:
    """Tasks that differ in their experts only."""

    name = "played"

    def __init__(self, *experts: Callable[[], Expert], task: Task) -> None:
        self._experts, self._task = experts, task

    def __len__(self) -> int:
        return len(self._experts)

    def task(self, index: int) -> Task:
        return replace(self._task, id=str(index))

    def expert(self, task: Task) -> Expert:
        return self._experts[int(task.id)]()


def commands(*given: str) -> Callable[[], Expert]:
    """An expert that gives these commands, whatever it sees."""

    def play() -> Expert:
        for command in given:  # noqa: UP028  (a tuple's iterator cannot be sent observations)
            yield command

    return play


def unreadable() -> Expert:
    yield "true"
    raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")


def test_an_episode_that_ends_without_a_verdict_has_a_reason() -> None:
    if reason := bubblewrap_available():
        pytest.skip(reason)
    task = Task("", "", verifier="true", max_turns=3, time_limit=2.5)
    suite = Played(
        commands("true", "submit"),
        commands("true", "true", "submit"),
        commands("true", "true", "true", "submit"),
        commands("true"),
        commands("echo a\0b", "submit"),
        commands("#" * 1_000_001, "submit"),
        commands("sleep 60", "true", "submit"),
        unreadable,
        task=task,
    )
    checks = check_suite(suite, range(len(suite)), before=False)
    assert [done.after for done in checks] == [1.0, 1.0, *[None] * 6]
    assert [done.reason.partition(":")[0] for done in checks[2:]] == [
        "no submit within 3 turns",
        "the expert ended without a submit",
        "the expert's command is refused",
        "the expert's command is refused",
        "no submit within 2.5 s of commands",
        "the expert has no command",
    ]
    assert summary(checks)["rejected_by_cause"] == {done.reason.partition(": ")[0]: 1 for done in checks[2:]} | {
        "the expert's command is refused": 2
    }


def test_an_interrupt_ends_what_is_under_way_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := bubblewrap_available():
        pytest.skip(reason)
    running, closed = threading.Barrier(3), []

    class Watched(BubblewrapSandbox):
        def run(self, command: str, timeout: float = 30.0) -> CommandResult:
            running.wait(60.0)
            return super().run(command, timeout)

        def close(self) -> None:
            super().close()
            closed.append(self)

    monkeypatch.setattr(scenes, "Machines", lambda kind: lambda task: Watched())
    long = commands("sleep 1000", "submit")
    suite = Played(long, long, commands("submit"), task=Task("", "", timeout=500.0))

    def report(done: TaskCheck) -> None:
        running.wait(60.0)  # until both of the others sleep
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check_suite(suite, (2, 0, 1), before=False, workers=3, report=report)
    assert len(set(closed)) == 3
    assert not [thread for thread in threading.enumerate() if "ThreadPoolExecutor" in thread.name]
