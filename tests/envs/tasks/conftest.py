"""Plays commands against a task in a real sandbox."""

from collections.abc import Callable

import pytest

from obsspec_gym.envs.command import submitted_answer
from obsspec_gym.envs.observation import ObservationFormat
from obsspec_gym.envs.sandbox import make_sandbox
from obsspec_gym.envs.sandbox.bubblewrap import bubblewrap_available
from obsspec_gym.envs.scene import judge, prepare
from obsspec_gym.envs.tasks import Task

Decide = Callable[[list[tuple[str, str]]], str]
Play = Callable[[Task, Decide], tuple[float, list[tuple[str, str]]]]


@pytest.fixture
def play() -> Play:
    """Runs an episode to its end: reward and transcript."""

    def run(task: Task, decide: Decide) -> tuple[float, list[tuple[str, str]]]:
        sandbox = make_sandbox("local" if bubblewrap_available() else "bubblewrap")
        try:
            sandbox.start()
            prepare(sandbox, task)
            transcript: list[tuple[str, str]] = []
            while len(transcript) < task.max_turns:
                command = decide(transcript)
                answer = submitted_answer(command)
                if answer is not None:
                    return judge(sandbox, task, answer).reward, transcript
                result = sandbox.run(command, task.timeout)
                transcript.append((command, ObservationFormat().format(result, sandbox.workdir, task.timeout)))
            return 0.0, transcript
        finally:
            sandbox.close()

    return run
