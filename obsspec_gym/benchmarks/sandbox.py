"""What sandboxes cost: a command's round trip, a start, a fork, many starts at once; beside the plain ways, in one run.

A round trip is ``true`` in a sandbox's shell, from the call to the result. Beside it stand a process of its own for the
command, here (``subprocess``) and in the container (``docker exec``, the program). Repeats are interleaved, so that
whatever else the machine does meets all of them alike; the first of each, which fills caches, does not count. What the
machine was busy with besides is told by ``load``, the length of its queue of processes when the measurement began.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import asdict
from typing import Any

from obsspec_gym.envs.sandbox import Sandbox, make_sandbox
from obsspec_gym.envs.sandbox.daemon import docker_host
from obsspec_gym.envs.sandbox.docker import DockerSandbox
from obsspec_gym.envs.sandbox.local import NoIsolationWarning
from obsspec_gym.errors import InvalidArgumentError, MissingExtraError, SandboxError, SandboxUnavailableError
from obsspec_gym.speculation.metrics import Spread

DEFAULTS: dict[str, Any] = {"repeats": 7, "commands": 50, "many": 64, "kinds": "bubblewrap,local,docker"}
FULL: dict[str, Any] = {"repeats": 21, "commands": 200}

_FILES = {f"src/module_{number}.py": f"x = {number}\n" * 50 for number in range(40)}  # what a fork copies


def run(*, repeats: int, commands: int, many: int, kinds: str, report: Callable[[str], None]) -> dict[str, Any]:
    """Medians with quartiles, in milliseconds.

    Args:
        repeats: Starts and forks of each kind.
        commands: Commands of each kind in a repeat.
        many: Sandboxes that are started at once; 0 for none.
        kinds: Kinds of sandbox, with commas between.
        report: Is told about progress.

    Returns:
        For each kind ``round_trip_ms``, ``start_ms``, ``fork_ms`` (of 40 small files) and the spread of each under
        ``spread``; where a kind cannot be had here these are None, and ``reason`` says why. ``bubblewrap.start_64_s``:
        wall seconds until that many are up, a thread each. Also ``subprocess_ms`` and ``docker_exec_ms``.
    """
    if repeats < 1 or commands < 1 or many < 0:
        raise InvalidArgumentError(
            f"repeats and commands must be >= 1 and many >= 0, got {repeats}, {commands}, {many}"
        )
    result: dict[str, Any] = {"load": os.getloadavg()[0], "cpus": len(os.sched_getaffinity(0)), "repeats": repeats}
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", NoIsolationWarning)
        probes, refused = _probes([kind.strip() for kind in kinds.split(",")], stack)
        process, in_container = _Process(["true"]), _docker_exec(probes.get("docker"))
        measured: list[tuple[_Probe | _Process, int]] = [(probe, commands) for probe in probes.values()]
        measured += [(way, 5) for way in (process, in_container) if way is not None]
        _measure(measured, repeats, report)
        result |= refused | {kind: probe.to_json() for kind, probe in probes.items()}
        result["subprocess_ms"] = process.to_json()
        result["docker_exec_ms"] = in_container.to_json() if in_container else None
        if "bubblewrap" in probes and many:
            seconds = result["bubblewrap"][f"start_{many}_s"] = _start_many(many)
            report(f"{many} were up after {seconds:.2f} s")
    return result


def _probes(kinds: Sequence[str], stack: ExitStack) -> tuple[dict[str, _Probe], dict[str, Any]]:
    """A probe of each kind, which the stack closes, and what is told of those that cannot be had here."""
    probes: dict[str, _Probe] = {}
    refused: dict[str, Any] = {}
    for kind in kinds:
        try:
            probes[kind] = stack.enter_context(closing(_Probe(kind)))
        except (SandboxUnavailableError, MissingExtraError) as error:
            refused[kind] = {"round_trip_ms": None, "start_ms": None, "fork_ms": None, "reason": str(error)}
    return probes, refused


def _measure(measured: Sequence[tuple[_Probe | _Process, int]], repeats: int, report: Callable[[str], None]) -> None:
    """All of them by turns, once more than counts."""
    for repeat in range(repeats + 1):
        for each, commands in measured:
            each.measure(commands)
            if repeat == 0:
                each.forget()
        report(f"repeat {repeat} of {repeats}")


class _Probe:
    """Measures one kind of sandbox. To be closed.

    Raises:
        SandboxUnavailableError: If this machine cannot provide it.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._milliseconds: dict[str, list[float]] = defaultdict(list)
        self.sandbox = self._started()
        self.sandbox.write(_FILES)

    def measure(self, commands: int) -> None:
        """One start, one fork, and round trips."""
        self._milliseconds["start_ms"].append(_once(self._started))
        self._milliseconds["fork_ms"].append(_once(self.sandbox.fork))
        for _ in range(commands):
            began = time.perf_counter()
            exit_code = self.sandbox.run("true").exit_code
            self._milliseconds["round_trip_ms"].append(1e3 * (time.perf_counter() - began))
            assert exit_code == 0

    def forget(self) -> None:
        """Lets what was measured so far not count."""
        self._milliseconds.clear()

    def to_json(self) -> dict[str, Any]:
        """Medians, and the spread of each."""
        spreads = {name: Spread.of(values) for name, values in self._milliseconds.items()}
        medians = {name: spread.median for name, spread in spreads.items()}
        return {**medians, "spread": {name: asdict(spread) for name, spread in spreads.items()}}

    def close(self) -> None:
        """Ends it."""
        self.sandbox.close()

    def _started(self) -> Sandbox:
        sandbox = make_sandbox(self._kind)
        sandbox.start()
        return sandbox


class _Process:
    """Measures a command as a process of its own."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._milliseconds: list[float] = []

    def measure(self, commands: int) -> None:
        """Runs it so often."""
        for _ in range(commands):
            began = time.perf_counter()
            subprocess.run(self._command, stdin=subprocess.DEVNULL, capture_output=True, check=True)
            self._milliseconds.append(1e3 * (time.perf_counter() - began))

    def forget(self) -> None:
        """Lets what was measured so far not count."""
        self._milliseconds.clear()

    def to_json(self) -> dict[str, Any]:
        """Its spread."""
        return asdict(Spread.of(self._milliseconds))


def _docker_exec(probe: _Probe | None) -> _Process | None:
    """The plain way into the container of a probe; None where there is none, or no docker program."""
    program = shutil.which("docker")
    if probe is None or program is None:
        return None
    sandbox = probe.sandbox
    assert isinstance(sandbox, DockerSandbox)
    return _Process([program, "-H", docker_host(), "exec", sandbox.container, "true"])


def _once(make: Callable[[], Sandbox]) -> float:
    """Milliseconds until a sandbox is made, which is closed then."""
    began = time.perf_counter()
    sandbox = make()
    milliseconds = 1e3 * (time.perf_counter() - began)
    sandbox.close()
    return milliseconds


def _start_many(count: int) -> float:
    """Seconds until so many sandboxes are up and have answered, with a thread each, as terminals have one."""
    with ExitStack() as stack:
        sandboxes = [stack.enter_context(closing(make_sandbox("bubblewrap"))) for _ in range(count)]

        def start(sandbox: Sandbox) -> bytes:
            sandbox.start()
            return sandbox.run("echo up").output

        began = time.perf_counter()
        with ThreadPoolExecutor(count) as pool:
            said = list(pool.map(start, sandboxes))
        seconds = time.perf_counter() - began
        if said != [b"up\n"] * count:
            raise SandboxError("not all of the sandboxes came up")
        return seconds
