"""A terminal as a Gymnasium environment: one task, one sandbox, one command a step."""

from __future__ import annotations

import contextlib
import functools
import math
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import gymnasium as gym
from gymnasium.error import ResetNeeded

from obsspec_gym.envs.arguments import is_integer, read_latency, read_sandbox, read_suite, read_task
from obsspec_gym.envs.command import check_command, submitted_answer
from obsspec_gym.envs.latency import LatencyProfile
from obsspec_gym.envs.listener import OnOutput, run_heard
from obsspec_gym.envs.machine import Machines
from obsspec_gym.envs.observation import ObservationFormat
from obsspec_gym.envs.owner import SandboxOwner
from obsspec_gym.envs.sandbox.base import Sandbox
from obsspec_gym.envs.scene import judge, prepare
from obsspec_gym.envs.tasks.task import Suite, Task
from obsspec_gym.errors import ClosedError, InvalidArgumentError, SandboxError, SandboxUnavailableError
from obsspec_gym.spaces import TerminalText
from obsspec_gym.types import MalformedCall

SUBMITTED = "[submitted]"
"""The observation of ``submit``."""
BROKEN = "[the sandbox broke]"
"""The observation of a step whose sandbox broke; ``info["reason"]`` tells more."""
NOT_RUN = "[not run: no tool call could be read in the reply]"
"""The observation of a malformed call."""

_INDICES = 2**31  # how many tasks of an unlimited suite are drawn from


class TerminalEnv(gym.Env[str, str]):
    """An agent's shell session on one task.

    An action is a bash command, an observation what it printed, its exit status and the working directory
    (:class:`~obsspec_gym.envs.observation.ObservationFormat`); the first observation is the task's instruction. The
    action ``submit`` (or ``submit TEXT``) ends the episode: the task's verifier then judges the sandbox as it was left,
    in a process of its own, and gives the reward: 1 or 0, or what it wrote. Every other step has reward 0; an episode
    that runs out of turns without submitting is truncated, not judged; so is one whose commands took longer together
    than the task allows.

    A failing command is an observation. A sandbox that breaks truncates the episode, with ``info["broken"]`` True and
    ``info["reason"]``; where that happens during ``reset``, the first step does so. ``info`` holds ``task_id``,
    ``sample`` and ``turn``, and after a step ``tool_seconds`` (wall seconds the command took, added latency included;
    0 where none ran), ``cwd``, ``timed_out`` and, unless it was stopped at its timeout, ``exit_code``. A submit adds
    ``verifier_output`` and ``verifier_seconds``.

    Nothing is started before the first ``reset``. ``close`` may be called from another thread: it ends a step under
    way, which then raises :class:`~obsspec_gym.errors.ClosedError`.

    Args:
        suite: Where tasks come from: a suite's name or a :class:`~obsspec_gym.envs.tasks.task.Suite`.
        task: The task of every episode (itself, or its index in the suite) unless ``reset`` is told another; by
            default each episode draws one from the environment's seeded generator.
        sandbox: Kind of sandbox, with options ``Machines("docker", memory_mib=512)``
            (:mod:`obsspec_gym.envs.machine`); or a callable that makes one (``partial(make_sandbox, "bubblewrap",
            frozen_clock=True)``), for tasks without a machine of their own.
        max_turns: Actions after which an episode is truncated; by default the task's own.
        timeout: Seconds a command may run; by default the task's own.
        observation_format: How observations are written; ``ObservationFormat(canonical=True)`` masks dates, durations,
            hashes and the like before anyone sees them.
        latency: Delay added to every command: a profile or its text form; by default none.
        start_index: Tasks are drawn from this index of the suite on, so that two runs can share a suite.
        render_mode: ``"ansi"`` for the transcript, or ``None``.

    Raises:
        InvalidArgumentError: If an argument is not what is described here.

    Example:
        >>> env = TerminalEnv("basics")
        >>> instruction, info = env.reset(seed=0)
        >>> observation, reward, terminated, truncated, info = env.step("echo hello")
        >>> print(observation)
        hello
        [exit 0] ~
        >>> env.close()
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"], "render_fps": 1}  # type: ignore[misc]  # Gymnasium's is no ClassVar

    def __init__(
        self,
        suite: str | Suite = "basics",
        *,
        task: Task | int | None = None,
        sandbox: str | Machines | Callable[[], Sandbox] = "bubblewrap",
        max_turns: int | None = None,
        timeout: float | None = None,
        observation_format: ObservationFormat | None = None,
        latency: LatencyProfile | str | None = None,
        start_index: int = 0,
        render_mode: str | None = None,
    ) -> None:
        self._suite = read_suite(suite)
        self._task = None if task is None else read_task(self._suite, task)
        self._make_sandbox = read_sandbox(sandbox, self._task)
        if max_turns is not None and (not is_integer(max_turns) or max_turns < 1):
            raise InvalidArgumentError(f"max_turns must be an integer >= 1, got {max_turns!r}")
        if timeout is not None and not timeout > 0:
            raise InvalidArgumentError(f"timeout must be a positive number of seconds, got {timeout!r}")
        if not is_integer(start_index) or not 0 <= start_index < len(self._suite):
            raise InvalidArgumentError(
                f"start_index must be an index of suite {self._suite.name!r}, below {len(self._suite)},"
                f" got {start_index!r}"
            )
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise InvalidArgumentError(f"render_mode must be None or 'ansi', got {render_mode!r}")
        self._max_turns = max_turns
        self._timeout = timeout
        self._start_index = start_index
        self._format = observation_format or ObservationFormat()
        self._latency = read_latency(latency)
        self.render_mode = render_mode
        self.observation_space = TerminalText(allow_nul=True)  # programs may print it
        self.action_space = TerminalText()
        self._episode: _Episode | None = None
        self._on_output: OnOutput | None = None
        self._owner = SandboxOwner()
        self._finalizer = weakref.finalize(self, self._owner.close)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Starts an episode in a fresh sandbox.

        Args:
            seed: Seeds the generator that tasks are drawn from.
            options: ``"task"``: the task, or its index in the suite. ``"sample"``: the member of the group, from 0.

        Returns:
            The task's instruction, and ``info``.

        Raises:
            InvalidArgumentError: If an option is unknown or wrong.
            SandboxUnavailableError: If this machine cannot provide the sandbox.
            ClosedError: If the environment is closed.
        """
        self._owner.require_open()
        task, sample = self._read_options(options or {})
        super().reset(seed=seed)
        episode = _Episode(task or self._task or self._draw(), sample)
        self._make_sandbox.check(episode.task)
        self._episode = None  # until this one stands
        self._owner.release()
        try:
            sandbox = episode.sandbox = self._owner.start(functools.partial(self._make_sandbox, episode.task))
            episode.made = prepare(sandbox, episode.task)
        except SandboxUnavailableError:
            raise
        except (SandboxError, ClosedError) as error:
            self._owner.require_open(error)
            episode.failure = str(error)
        self._episode = episode
        if self.render_mode == "ansi":
            episode.transcript.append(episode.task.instruction)
        return episode.task.instruction, episode.info()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Runs one command, or hands in.

        Args:
            action: A bash command, ``submit`` or ``submit TEXT``. A :class:`~obsspec_gym.types.MalformedCall` is not
                run: the observation says so.

        Returns:
            Observation, reward, terminated, truncated and ``info``.

        Raises:
            InvalidArgumentError: If the action is not text, holds NUL, or is over 1,000,000 bytes; nothing was run.
            ResetNeeded: If there is no episode under way.
            ClosedError: If the environment is closed, or was while the command ran.
        """
        self._owner.require_open()
        episode = self._episode
        if episode is None or episode.over:
            raise ResetNeeded(f"call reset() first: {'the episode is over' if episode else 'no episode was started'}")
        command = check_command(action)
        try:
            observation, reward, terminated, report = self._act(episode, command)
        except (SandboxError, ClosedError) as error:
            self._owner.require_open(error)
            episode.failure = str(error)
            observation, reward, terminated, report = BROKEN, 0.0, False, {}
        except BaseException:
            episode.failure = "a step was interrupted"  # what the shell is doing now, nobody knows
            raise
        episode.turn += 1
        over = None if terminated else self._exhausted(episode)
        truncated = episode.failure is not None or over is not None
        if truncated:
            report["reason"] = episode.failure or over
            report["broken"] = episode.failure is not None
        episode.over = terminated or truncated
        if episode.over:
            self._owner.release()
        if self.render_mode == "ansi":
            episode.transcript.append(f"$ {command}\n{observation}")
        return observation, reward, terminated, truncated, episode.info() | {"tool_seconds": 0.0} | report

    @contextlib.contextmanager
    def listening(self, on_output: OnOutput | None) -> Iterator[None]:
        """For the steps within, has someone told what commands print while they run; changes nothing else.

        Example:
            >>> with TerminalEnv("basics").listening(print):
            ...     pass
        """
        earlier, self._on_output = self._on_output, on_output
        try:
            yield
        finally:
            self._on_output = earlier

    def render(self) -> str | None:
        """The transcript so far, with ``render_mode="ansi"``; ``None`` otherwise.

        Raises:
            ResetNeeded: If no episode was started.
        """
        if self.render_mode is None:
            return None
        if self._episode is None:
            raise ResetNeeded("call reset() first: no episode was started")
        return "\n\n".join(self._episode.transcript) + "\n"

    def close(self) -> None:
        """Ends the episode and everything in its sandbox. Idempotent; callable from any thread."""
        self._owner.close()
        self._finalizer.detach()

    def _act(self, episode: _Episode, command: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Observation, reward, whether the agent handed in, and what ``info`` says of it."""
        if episode.failure is not None or episode.sandbox is None:
            raise SandboxError(episode.failure or "it was never started")
        if isinstance(command, MalformedCall):
            return NOT_RUN, 0.0, False, {}
        answer = submitted_answer(command)
        if answer is None:
            observation, report = self._run(episode, episode.sandbox, command)
            return observation, 0.0, False, report
        verdict = judge(episode.sandbox, episode.task, answer, episode.made)
        return SUBMITTED, verdict.reward, True, {"verifier_output": verdict.output, "verifier_seconds": verdict.seconds}

    def _run(self, episode: _Episode, sandbox: Sandbox, command: str) -> tuple[str, dict[str, Any]]:
        timeout = self._timeout or episode.task.timeout
        if episode.task.time_limit is not None:
            timeout = min(timeout, max(1.0, math.ceil(episode.task.time_limit - episode.seconds)))
        started = time.perf_counter()
        self._owner.wait(self._latency.delay(episode.task.id, episode.sample, episode.turn))
        result = run_heard(sandbox, command, timeout, self._on_output)
        episode.seconds += result.seconds
        report: dict[str, Any] = {
            "tool_seconds": time.perf_counter() - started,
            "cwd": result.cwd,
            "timed_out": result.timed_out,
        }
        if result.exit_code is not None:
            report["exit_code"] = result.exit_code
        return self._format.format(result, home=sandbox.home, timeout=timeout), report

    def _exhausted(self, episode: _Episode) -> str | None:
        """What the episode has used up, if anything."""
        if episode.turn >= (self._max_turns or episode.task.max_turns):
            return f"no submit within {episode.turn} turns"
        limit = episode.task.time_limit
        if limit is not None and episode.seconds >= limit:
            return f"no submit within {limit:g} s of commands"
        return None

    def _draw(self) -> Task:
        stop = min(len(self._suite), self._start_index + _INDICES)
        return self._suite.task(int(self.np_random.integers(self._start_index, stop)))

    def _read_options(self, options: Mapping[str, Any]) -> tuple[Task | None, int]:
        unknown = sorted(map(str, options.keys() - {"task", "sample"}))
        if unknown:
            raise InvalidArgumentError(f"reset options are 'task' and 'sample', got {', '.join(map(repr, unknown))}")
        task, sample = options.get("task"), options.get("sample", 0)
        if not is_integer(sample) or sample < 0:
            raise InvalidArgumentError(f"option 'sample' must be an integer >= 0, got {sample!r}")
        return (None if task is None else read_task(self._suite, task)), int(sample)


@dataclass(slots=True, eq=False)
class _Episode:
    """One try at one task."""

    task: Task
    sample: int
    sandbox: Sandbox | None = None
    made: Mapping[str, bytes] = field(default_factory=dict)  # of the scene, for the verifier
    turn: int = 0
    seconds: float = 0.0  # that its commands took together
    over: bool = False
    failure: str | None = None  # why the sandbox cannot go on
    transcript: list[str] = field(default_factory=list)

    def info(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"task_id": self.task.id, "sample": self.sample, "turn": self.turn}
        return facts if self.failure is None else facts | {"reason": self.failure}
