"""Plays commands against a task in a real sandbox, and says where there is no image for one."""

import shutil
import warnings
from collections.abc import Callable, Iterator

import pytest

from obsspec_gym.envs.command import submitted_answer
from obsspec_gym.envs.images import image_tree
from obsspec_gym.envs.observation import ObservationFormat
from obsspec_gym.envs.sandbox import Sandbox, make_sandbox
from obsspec_gym.envs.sandbox.bubblewrap import bubblewrap_available
from obsspec_gym.envs.sandbox.local import NoIsolationWarning
from obsspec_gym.envs.scene import judge, prepare
from obsspec_gym.envs.tasks import Task
from obsspec_gym.errors import SandboxUnavailableError

Decide = Callable[[list[tuple[str, str]]], str]
Play = Callable[[Task, Decide], tuple[float, list[tuple[str, str]]]]


@pytest.fixture
def needs_image() -> None:
    """Skips the test where bubblewrap or the base image is missing."""
    if reason := bubblewrap_available():
        pytest.skip(reason)
    try:
        image_tree()
    except SandboxUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def one_sandbox() -> Iterator[Sandbox]:
    """One sandbox for the episodes of a module."""
    sandbox = make_sandbox("local" if bubblewrap_available() else "bubblewrap")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoIsolationWarning)
        sandbox.start()
    yield sandbox
    sandbox.close()


@pytest.fixture
def play(one_sandbox: Sandbox) -> Play:
    """Runs an episode to its end, in an empty home: reward and transcript. Skips where programs are missing."""

    def run(task: Task, decide: Decide) -> tuple[float, list[tuple[str, str]]]:
        if missing := [name for name in task.requires if shutil.which(name) is None]:
            pytest.skip(f"not on this machine: {', '.join(missing)}")
        one_sandbox.run("kill -KILL $$")
        assert one_sandbox.run("cd && chmod -R u+rwx . && rm -rf .[!.]* *").exit_code == 0
        prepare(one_sandbox, task)
        transcript: list[tuple[str, str]] = []
        while len(transcript) < task.max_turns:
            command = decide(transcript)
            answer = submitted_answer(command)
            if answer is not None:
                return judge(one_sandbox, task, answer).reward, transcript
            result = one_sandbox.run(command, task.timeout)
            transcript.append((command, ObservationFormat().format(result, one_sandbox.workdir, task.timeout)))
        return 0.0, transcript

    return run
