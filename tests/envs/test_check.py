"""Checks of suites: what is counted, and under which cause."""

import pytest

from obsspec_gym.envs.check import TaskCheck, check_suite, summary
from obsspec_gym.envs.sandbox.bubblewrap import bubblewrap_available
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
        "refused_by_cause": {"the setup of task broken failed (exit status 3)": 1, "no": 1},
        "unsolved_before": 3,
        "solved_before": 1,
        "without_expert": 1,
        "graded": 3,
        "accepted": 2,
        "rejected_by_cause": {"no": 1},
    }
