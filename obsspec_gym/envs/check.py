"""Whether a suite's tasks work: they can be made, are not solved from the start, and are solved by their experts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace

from obsspec_gym.envs.scenes import NoVerdict, Scenes
from obsspec_gym.envs.tasks.task import Suite
from obsspec_gym.errors import InvalidArgumentError, SandboxError, SandboxUnavailableError

_UNBUILT = re.compile(r".*? cannot be (made|built): .*?\bline \d+: ")
_CAUSE_CHARACTERS = 120
_NO_EXPERT = "no expert"


@dataclass(frozen=True, slots=True)
class TaskCheck:
    """What became of one task.

    Attributes:
        index: Its index in the suite.
        task_id: Its id; empty where there is no task to be had.
        refused: Why there is none, or why its scene could not be set; empty if it was.
        before: The reward for handing in at once; ``None`` if that was not tried.
        after: The reward of the expert; ``None`` if there is none, or it was not tried.
        reason: What the verifier printed last where the expert's reward is not 1, or why there was no verdict.
    """

    index: int
    task_id: str = ""
    refused: str = ""
    before: float | None = None
    after: float | None = None
    reason: str = ""


def check_task(suite: Suite, index: int, scenes: Scenes, *, before: bool = True) -> TaskCheck:
    """Tries one task, each time in a fresh sandbox: first handing in at once, then as the expert does.

    Args:
        suite: The suite.
        index: Which of its tasks.
        scenes: Where.
        before: Whether to try handing in at once.

    Raises:
        SandboxUnavailableError: If this machine cannot provide such sandboxes.
        ClosedError: If the scenes were closed.
    """
    try:
        task = suite.task(index)
    except InvalidArgumentError as error:
        return TaskCheck(index, refused=str(error))
    done = TaskCheck(index, task.id)
    try:
        if before:
            with scenes.scene(task) as scene:
                done = replace(done, before=scene.judge("").reward)
        try:
            expert = suite.expert(task)
        except InvalidArgumentError as error:
            return replace(done, reason=f"{_NO_EXPERT}: {error}")
        with scenes.scene(task) as scene:
            try:
                verdict = scene.play(expert)
            except NoVerdict as error:
                return replace(done, reason=str(error))
            except SandboxError as error:
                return replace(done, reason=f"the sandbox broke: {error}")
        said = verdict.output.strip().rpartition("\n")[2]
        return replace(done, after=verdict.reward, reason="" if verdict.reward == 1 else said)
    except SandboxUnavailableError:
        raise
    except SandboxError as error:
        return replace(done, refused=str(error))


def check_suite(
    suite: Suite,
    indices: Iterable[int],
    kind: str = "bubblewrap",
    *,
    before: bool = True,
    workers: int = 2,
    report: Callable[[TaskCheck], None] = lambda done: None,
) -> list[TaskCheck]:
    """:func:`check_task` for several tasks, some at a time; in the order of their indices.

    Args:
        suite: The suite.
        indices: Which of its tasks.
        kind: Kind of sandbox.
        before: Whether to try handing in at once.
        workers: How many tasks at a time.
        report: Told each result as it comes.
    """
    checks, scenes = [], Scenes(kind)
    with ThreadPoolExecutor(workers) as pool:
        try:
            for future in as_completed(pool.submit(check_task, suite, i, scenes, before=before) for i in indices):
                checks.append(future.result())
                report(checks[-1])
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            scenes.close()  # what is under way ends with its sandbox
            raise
    return sorted(checks, key=lambda done: done.index)


def summary(checks: Iterable[TaskCheck]) -> dict[str, int | dict[str, int]]:
    """How many of each, and by cause (the part of a reason before a colon and a space).

    Returns:
        ``tasks``, ``built``, ``refused_by_cause``, ``unsolved_before`` (of those tried), ``solved_before``,
        ``without_expert``, ``graded`` (the expert reached a verdict), ``accepted`` (with reward 1) and
        ``rejected_by_cause``.
    """
    checks = list(checks)
    built = [done for done in checks if not done.refused]
    alone = [done for done in built if _cause(done.reason) == _NO_EXPERT]
    graded = [done for done in built if done.after is not None]
    return {
        "tasks": len(checks),
        "built": len(built),
        "refused_by_cause": _by_cause(_cause(done.refused) for done in checks if done.refused),
        "unsolved_before": sum(done.before is not None and done.before < 1 for done in built),
        "solved_before": sum(done.before is not None and done.before >= 1 for done in built),
        "without_expert": len(alone),
        "graded": len(graded),
        "accepted": sum(done.after == 1 for done in graded),
        "rejected_by_cause": _by_cause(_cause(done.reason) for done in built if done.reason and done not in alone),
    }


def _cause(reason: str) -> str:
    """What the reasons of the same kind have in common; all of it where a Dockerfile says what is missing."""
    built = _UNBUILT.match(reason)
    return (reason[built.end() :] if built else reason.partition(": ")[0])[:_CAUSE_CHARACTERS]


def _by_cause(causes: Iterable[str]) -> dict[str, int]:
    return dict(Counter(causes).most_common())
