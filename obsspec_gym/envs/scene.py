"""How a task's scene is set in a sandbox, and how the scene an agent left is judged."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from obsspec_gym.envs.sandbox.base import CommandResult, Sandbox
from obsspec_gym.envs.tasks.task import Task
from obsspec_gym.errors import SandboxError

_SETUP_SECONDS = 120.0
_VERIFIER_SECONDS = 60.0
_ANSWER_BYTES = 100_000  # one environment variable of Linux holds 131,072
_TAIL_BYTES = 2_000


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verifier said.

    Attributes:
        reward: 1.0 where it ended with exit status 0, otherwise 0.0.
        output: The last 2,000 bytes it printed, for people; agents never see it.
        seconds: Wall seconds it ran.
    """

    reward: float
    output: str
    seconds: float


def prepare(sandbox: Sandbox, task: Task) -> None:
    """Sets the scene: the task's files, then its setup, in a subshell so that the agent's shell keeps no trace of it.

    Raises:
        SandboxError: If a program is missing or the setup fails.
    """
    if task.requires:
        names = " ".join(map(shlex.quote, task.requires))
        probe = f'(for name in {names}; do command -v "$name" >/dev/null || echo "$name"; done)'
        if missing := _tail(sandbox.run(probe, _SETUP_SECONDS)).split():
            raise SandboxError(f"task {task.id} needs {', '.join(missing)}, which the sandbox does not have")
    if task.files:
        sandbox.write(task.files)
    if task.setup:
        result = sandbox.run(f"(\n{task.setup}\n)", _SETUP_SECONDS)
        if result.exit_code != 0:
            how = f"exit status {result.exit_code}" if result.exit_code is not None else "it took too long"
            raise SandboxError(f"the setup of task {task.id} failed ({how}): {_tail(result)}")


def judge(sandbox: Sandbox, task: Task, answer: str) -> Verdict:
    """Runs the verifier, in a process of its own, over the sandbox as the agent left it.

    Args:
        sandbox: The sandbox.
        task: The task.
        answer: What was handed in; the verifier reads its first 100,000 bytes in ``$ANSWER``.
    """
    answer = answer.encode("utf-8")[:_ANSWER_BYTES].decode("utf-8", "ignore")
    result = sandbox.verify(task.verifier, task.verifier_files, {"ANSWER": answer}, _VERIFIER_SECONDS)
    return Verdict(float(result.exit_code == 0), _tail(result), result.seconds)


def _tail(result: CommandResult) -> str:
    return result.output[-_TAIL_BYTES:].decode("utf-8", "replace")
