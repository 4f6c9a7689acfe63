"""A sandbox without processes, a suite of plain tasks, and a Gymnasium environment that misbehaves on request."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium as gym

from obsspec_gym.envs.sandbox.base import CommandResult
from obsspec_gym.envs.sandbox.stream import CommandStream
from obsspec_gym.envs.tasks.task import Expert, Task
from obsspec_gym.errors import ClosedError, InvalidArgumentError, SandboxError, SandboxUnavailableError


class FakeSandbox:
    """Knows a few commands; ``opened`` and ``closed`` count over all of them.

    ``echo TEXT``, ``fail``, ``hang`` (until closed), ``gate`` (until :attr:`gate` is set), ``break`` (the sandbox
    does), ``bug`` (an error nobody foresaw), ``interrupt`` (Ctrl-C); anything else prints nothing.
    """

    opened = 0
    closed = 0
    lock = threading.Lock()
    gate = threading.Event()
    hanging = threading.Event()

    workdir = home = "/home/agent"

    def __init__(self) -> None:
        self.files: dict[str, str | bytes] = {}
        self.log: list[str] = []
        self._started = False
        self._end = threading.Event()

    @classmethod
    def clear(cls) -> None:
        cls.opened = cls.closed = 0
        cls.gate = threading.Event()
        cls.hanging = threading.Event()

    def start(self) -> None:
        self._started = True
        with self.lock:
            type(self).opened += 1

    def write(self, files: Mapping[str, str | bytes]) -> None:
        self.files.update(files)

    def run(self, command: str, timeout: float = 30.0) -> CommandResult:
        if self._end.is_set():
            raise ClosedError("closed")
        self.log.append(command)
        words = command.strip("()\n ").split(maxsplit=1)
        text = words[1] if len(words) > 1 else ""
        match words[:1]:
            case ["hang"]:
                self.hanging.set()
                self._end.wait()
                raise SandboxError("its shell is gone")
            case ["gate"]:
                self.gate.wait()
                return _result(b"through\n")
            case ["break"]:
                raise SandboxError("the shell died")
            case ["bug"]:
                raise ZeroDivisionError("a bug")
            case ["interrupt"]:
                raise KeyboardInterrupt
            case ["slow"]:
                return _result(b"so far\n", exit_code=None)
            case ["fail"]:
                return _result(b"no\n", exit_code=1)
            case ["echo"]:
                return _result(text.encode() + b"\n")
        return _result(b"")

    def stream(self, command: str, timeout: float = 30.0) -> CommandStream:
        """Byte by byte."""
        return CommandStream(_Streamed(self, command, timeout))

    def fork(self) -> FakeSandbox:
        twin = type(self)()
        twin.files.update(self.files)
        twin.start()
        return twin

    def verify(
        self,
        script: str,
        files: Mapping[str, str | bytes],
        env: Mapping[str, str],
        timeout: float = 60.0,
        *,
        as_built: bool = False,
    ) -> CommandResult:
        self.log.append(f"verify {script} with {env['ANSWER']}")
        if script == "break":
            raise SandboxError("the verifier's process died")
        return _result(b"judged\n", exit_code=0 if env["ANSWER"] == script else 1)

    def close(self) -> None:
        first, self._started = self._started, False
        self._end.set()
        with self.lock:
            type(self).closed += first


class _Streamed:
    """A fake's command, which runs when it is first read."""

    def __init__(self, sandbox: FakeSandbox, command: str, timeout: float) -> None:
        self.result: CommandResult | None = None
        self._pieces = self._run(sandbox, command, timeout)

    def read(self) -> bytes | None:
        return next(self._pieces, None)

    def stop(self) -> None:
        for _ in self._pieces:
            pass

    def abandon(self) -> None:
        pass

    def _run(self, sandbox: FakeSandbox, command: str, timeout: float) -> Iterator[bytes]:
        result = sandbox.run(command, timeout)
        for byte in result.output:
            yield bytes([byte])
        self.result = result


class UnavailableSandbox(FakeSandbox):
    """One that no machine can provide."""

    def start(self) -> None:
        raise SandboxUnavailableError("no namespaces here: use another sandbox")


class FakeSuite:
    """Four tasks; task ``i`` is solved by ``submit i``."""

    name = "fake"

    def __len__(self) -> int:
        return 4

    def task(self, index: int) -> Task:
        if not 0 <= index < 4:
            raise InvalidArgumentError(f"index must be in 0..3, got {index}")
        return Task(f"fake/{index}", f"Submit {index}.", files={"a": "b"}, verifier=str(index), max_turns=4)

    def expert(self, task: Task) -> Expert:
        raise InvalidArgumentError("no expert here")


class Counter(gym.Env[int, int]):
    """Counts its steps and ends after three. Action 1 raises; 2 makes the next reset raise as well."""

    observation_space = gym.spaces.Discrete(1000)
    action_space = gym.spaces.Discrete(3)

    def __init__(self) -> None:
        self.steps = 0
        self.resets = 0
        self.weak = False
        self.options: dict[str, Any] | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        if self.weak:
            self.weak = False
            raise OSError("could not start")
        self.options = options
        self.steps = 0
        self.resets += 1
        return 0, {"resets": self.resets}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if action:
            self.weak = action == 2
            raise ZeroDivisionError("a bug")
        return self.steps, 1.0, self.steps >= 3, False, {"steps": self.steps}


def _result(output: bytes, exit_code: int | None = 0) -> CommandResult:
    return CommandResult(output, len(output), exit_code, "/home/agent", 0.0, timed_out=exit_code is None)
