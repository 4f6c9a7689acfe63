"""Scenes in fresh sandboxes, and experts' episodes in them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from obsspec_gym.envs.command import submitted_answer
from obsspec_gym.envs.machine import Machines
from obsspec_gym.envs.observation import ObservationFormat
from obsspec_gym.envs.sandbox.base import Sandbox
from obsspec_gym.envs.scene import Verdict, judge, prepare
from obsspec_gym.envs.tasks.task import Expert, Task
from obsspec_gym.errors import ClosedError, InvalidArgumentError


class Scenes:
    """Scenes, each in a fresh sandbox; all of them end at once where they are given up.

    Args:
        kind: Kind of sandbox.

    Raises:
        InvalidArgumentError: For an unknown kind.
    """

    def __init__(self, kind: str = "bubblewrap") -> None:
        self._machines = Machines(kind)
        self._lock = threading.Lock()
        self._open: set[Sandbox] = set()
        self._closed = False

    @contextlib.contextmanager
    def scene(self, task: Task) -> Iterator[Scene]:
        """A task's scene.

        Raises:
            SandboxError: If it cannot be set.
            ClosedError: After :meth:`close`.
        """
        sandbox = self._machines(task)
        with self._lock:
            if self._closed:
                raise ClosedError("the scenes were closed")
            self._open.add(sandbox)
        try:
            sandbox.start()
            yield Scene(sandbox, task, prepare(sandbox, task))
        finally:
            sandbox.close()
            with self._lock:
                self._open.discard(sandbox)

    def close(self) -> None:
        """Ends all that are open; no more can be set. Idempotent, from any thread."""
        with self._lock:
            self._closed, sandboxes = True, list(self._open)
        for sandbox in sandboxes:
            sandbox.close()


@dataclass(frozen=True, slots=True)
class Scene:
    """A task's scene.

    Attributes:
        sandbox: Where it is set.
        task: The task.
        made: What its verifier needs of it, see :func:`~obsspec_gym.envs.scene.prepare`.
    """

    sandbox: Sandbox
    task: Task
    made: Mapping[str, bytes]

    def judge(self, answer: str) -> Verdict:
        """The verdict on what was left, with an answer."""
        return judge(self.sandbox, self.task, answer, self.made)

    def play(self, expert: Expert) -> Verdict:
        """An expert's episode, to the verdict.

        It ends as an episode does: with ``submit``, or when it has used up its turns or its time. A command may take
        what is left of that time, where there is a limit: experts do in one command what takes others several.

        Raises:
            NoVerdict: If it ended otherwise.
            SandboxError: If the sandbox broke.
        """
        task, observation, seconds = self.task, None, 0.0
        for _ in range(task.max_turns):
            command = _ask(expert, observation)
            answer = submitted_answer(command)
            if answer is not None:
                return self.judge(answer)
            if task.time_limit is not None and seconds >= task.time_limit:
                raise NoVerdict(f"no submit within {task.time_limit:g} s of commands")
            timeout = task.timeout if task.time_limit is None else max(1.0, task.time_limit - seconds)
            try:
                result = self.sandbox.run(command, timeout)
            except InvalidArgumentError as error:
                raise NoVerdict(f"the expert's command is refused: {error}") from None
            seconds += result.seconds
            observation = ObservationFormat().format(result, self.sandbox.home, timeout)
        raise NoVerdict(f"no submit within {task.max_turns} turns")


class NoVerdict(Exception):
    """An expert's episode ended without a verdict; says why."""


def _ask(expert: Expert, observation: str | None) -> str:
    """An expert's next command."""
    try:
        return next(expert) if observation is None else expert.send(observation)
    except StopIteration:
        raise NoVerdict("the expert ended without a submit") from None
    except (InvalidArgumentError, UnicodeError, OSError) as error:  # of what it reads: a solution, say
        raise NoVerdict(f"the expert has no command: {error}") from None
