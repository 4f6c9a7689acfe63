"""How a task's scene is set in a sandbox, and how the scene an agent left is judged."""

from __future__ import annotations

import secrets
import shlex
from dataclasses import dataclass

from obsspec_gym.envs.machine import provision
from obsspec_gym.envs.reward import read_reward
from obsspec_gym.envs.sandbox.base import CommandResult, Sandbox
from obsspec_gym.envs.tasks.task import Task
from obsspec_gym.errors import SandboxError

_SETUP_SECONDS = 120.0
_REWARD_BYTES = 10_000
_ANSWER_BYTES = 100_000  # one environment variable of Linux holds 131,072
_TAIL_BYTES = 2_000


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verifier said.

    Attributes:
        reward: What it wrote in a file of :attr:`Task.rewards`; where there is none, 1.0 if it ended with exit
            status 0, otherwise 0.0.
        output: The last 2,000 bytes it printed, for people; agents never see it.
        seconds: Wall seconds it ran.
    """

    reward: float
    output: str
    seconds: float


def prepare(sandbox: Sandbox, task: Task) -> None:
    """Sets the scene: the task's machine, its files, then its setup.

    The setup runs in a subshell, so that the agent's shell keeps no trace of it.

    Raises:
        SandboxError: If the machine cannot be made, a program is missing or the setup fails.
    """
    provision(sandbox, task)
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
    mark = secrets.token_hex(16)
    script = _with_rewards(task, mark) if task.rewards else task.verifier
    result = sandbox.verify(script, task.verifier_files, {"ANSWER": answer}, task.verifier_timeout)
    passed = float(result.exit_code == 0)
    if not task.rewards:
        return Verdict(passed, _tail(result), result.seconds)
    printed, marked, written = result.output.decode("utf-8", "replace").rpartition(f"\n{mark}\n")
    said = (printed if marked else written)[-_TAIL_BYTES:]
    if not marked or not written:
        return Verdict(passed, said, result.seconds)
    reward, complaint = read_reward(written)
    return Verdict(reward, said + complaint, result.seconds)


def _with_rewards(task: Task, mark: str) -> str:
    """The verifier, and after it what it wrote as a reward, behind a mark that it cannot have printed by chance."""
    files = shlex.join(task.rewards)
    return (
        f"(\n{task.verifier}\n)\nstatus=$?\nprintf '\\n%s\\n' {mark}\n"
        f'for file in {files}; do if [ -f "$file" ]; then head -c {_REWARD_BYTES} "$file"; break; fi; done\n'
        "exit $status"
    )


def _tail(result: CommandResult) -> str:
    return result.output[-_TAIL_BYTES:].decode("utf-8", "replace")
