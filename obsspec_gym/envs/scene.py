"""How a task's scene is set in a sandbox, and how the scene an agent left is judged."""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from obsspec_gym.envs.machine import provision
from obsspec_gym.envs.reward import read_reward
from obsspec_gym.envs.sandbox.base import CommandResult, Sandbox
from obsspec_gym.envs.sandbox.programs import missing_programs
from obsspec_gym.envs.tasks.task import Task
from obsspec_gym.errors import InvalidArgumentError, SandboxError, SandboxUnavailableError

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


def prepare(sandbox: Sandbox, task: Task) -> dict[str, bytes]:
    """Sets the scene: the task's machine, its files, then its setup; works out what is expected, where the task asks.

    The setup runs in a subshell, so that the agent's shell keeps no trace of it.

    Returns:
        Files for :func:`judge`, which no agent may see.

    Raises:
        SandboxError: If the machine cannot be made, a program is missing, or the setup or the gold command fails.
    """
    provision(sandbox, task)
    if task.requires and (missing := missing_programs(sandbox, task.requires, _SETUP_SECONDS)):
        raise SandboxError(f"task {task.id} needs {', '.join(missing)}, which the sandbox does not have")
    if task.files:
        sandbox.write(task.files)
    if task.setup:
        result = sandbox.run(f"(\n{task.setup}\n)", _SETUP_SECONDS)
        if result.exit_code != 0:
            raise SandboxError(f"the setup failed ({_how(result)}): task {task.id}: {_tail(result)}")
    return {"gold": _gold(sandbox, task)} if task.gold else {}


def _gold(sandbox: Sandbox, task: Task) -> bytes:
    """What a task's gold command prints, run in a copy of the scene where the sandbox can be copied."""
    try:
        twin = sandbox.fork()
    except SandboxUnavailableError:
        result = sandbox.run(f"(\n{task.gold}\n)", task.verifier_timeout)
    else:
        try:
            result = twin.run(task.gold, task.verifier_timeout)
        finally:
            twin.close()
    if result.exit_code != 0:
        raise SandboxError(f"the gold command failed ({_how(result)}): task {task.id}: {_tail(result)}")
    if not result.output.strip():
        raise SandboxError(f"the gold command printed nothing: task {task.id}")
    if result.output_bytes > len(result.output):
        raise SandboxError(f"the gold command printed too much: task {task.id}: {result.output_bytes:,} bytes")
    return result.output


def _how(result: CommandResult) -> str:
    return "it took too long" if result.exit_code is None else f"exit status {result.exit_code}"


def judge(sandbox: Sandbox, task: Task, answer: str, made: Mapping[str, bytes] | None = None) -> Verdict:
    """Runs the task's trial, then its verifier, each in a process of its own, over the sandbox as the agent left it.

    A task without a verifier is judged by its answer and by what its trial prints.

    Args:
        sandbox: The sandbox.
        task: The task.
        answer: What was handed in; the verifier reads its first 100,000 bytes in ``$ANSWER``.
        made: What :func:`prepare` returned.

    Raises:
        InvalidArgumentError: If that is missing for a task with a gold command.
        SandboxError: If the sandbox broke.
    """
    if task.gold and not made:
        raise InvalidArgumentError(f"judging task {task.id} needs what prepare() returned")
    if not task.verifier:
        return _compare(sandbox, task, answer)
    answer = answer.encode("utf-8")[:_ANSWER_BYTES].decode("utf-8", "ignore")
    files, seconds = {**task.verifier_files, **(made or {})}, 0.0
    if task.trial:
        tried = sandbox.verify(task.trial, task.trial_files, {}, task.verifier_timeout)
        if tried.exit_code is None:
            return Verdict(0.0, _tail(tried) + "\n[the trial took too long]", tried.seconds)
        files["trial"], seconds = tried.output, tried.seconds
    mark = secrets.token_hex(16)
    script = _with_rewards(task, mark) if task.rewards else task.verifier
    environment = {"ANSWER": answer}
    result = sandbox.verify(script, files, environment, task.verifier_timeout, as_built=task.as_built)
    passed, seconds = float(result.exit_code == 0), seconds + result.seconds
    if not task.rewards:
        return Verdict(passed, _tail(result), seconds)
    printed, marked, written = result.output.decode("utf-8", "replace").rpartition(f"\n{mark}")
    said = (printed if marked else written)[-_TAIL_BYTES:]
    if not marked or not written:
        return Verdict(passed, said, seconds)
    reward, complaint = read_reward(written[1:])
    return Verdict(reward, said + complaint, seconds)


def _compare(sandbox: Sandbox, task: Task, answer: str) -> Verdict:
    """The verdict where the answer and what the trial prints say everything: no process is needed to compare texts."""
    if task.answer not in (None, answer):
        return Verdict(0.0, f"[another answer was expected: {task.answer}]", 0.0)
    if not task.trial:
        return Verdict(1.0, "", 0.0)
    tried = sandbox.verify(task.trial, task.trial_files, {}, task.verifier_timeout)
    as_expected = tried.exit_code is not None and tried.output == task.tried.encode()
    return Verdict(float(as_expected), _tail(tried), tried.seconds)


def _with_rewards(task: Task, mark: str) -> str:
    """The verifier, and after it a mark that it cannot have printed by chance.

    Where it left a reward, a line's end and what it wrote follow: an empty file is a reward that broke, not none. No
    program is run here that an agent might have replaced.
    """
    files = shlex.join(task.rewards)
    return (
        f"(\n{task.verifier}\n)\nstatus=$?\nprintf '\\n%s' {mark}\n"
        f'for file in {files}; do if [ -e "$file" ] || [ -L "$file" ]; then\n'
        f'echo; if [ -f "$file" ]; then IFS= read -r -N {_REWARD_BYTES} text < "$file"; printf %s "$text"; fi; break\n'
        "fi; done\nexit $status"
    )


def _tail(result: CommandResult) -> str:
    return result.output[-_TAIL_BYTES:].decode("utf-8", "replace")
