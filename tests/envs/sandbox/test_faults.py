"""What breaks while it runs: that episode is truncated with a reason, the other goes on, nothing hangs."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from obsspec_gym.envs.sandbox import bubblewrap, local, make_sandbox
from obsspec_gym.envs.sandbox.bubblewrap import bubblewrap_available
from obsspec_gym.envs.sandbox.processes import children, descendants, send_signal
from obsspec_gym.envs.sandbox.supervised import SupervisedSandbox
from obsspec_gym.envs.tasks.task import Expert, Task
from obsspec_gym.envs.terminal import BROKEN
from obsspec_gym.envs.vector import TerminalVectorEnv
from obsspec_gym.errors import InvalidArgumentError, SandboxError

pytestmark = pytest.mark.filterwarnings("ignore::obsspec_gym.envs.sandbox.local.NoIsolationWarning")

TIMEOUT = 2.0
BOUND = TIMEOUT + 2.0  # of a step, whatever breaks in it
START = 60.0  # of a step that starts or ends an episode: a busy machine is slow, not hanging
HANG = 2 * START


class Suite:
    """Tasks with nothing to do; the second needs more room than there is."""

    name = "faults"

    def __len__(self) -> int:
        return 2

    def task(self, index: int) -> Task:
        if not 0 <= index < 2:
            raise InvalidArgumentError(f"index must be 0 or 1, got {index}")
        setup = "head -c 20M /dev/zero >big" if index else ""
        return Task(f"faults/{index}", "Do nothing.", setup=setup, verifier="true")

    def expert(self, task: Task) -> Expert:
        raise InvalidArgumentError("no expert here")


class Two:
    """Two environments in step; faults are done to the first, and the second must never notice."""

    def __init__(self, kind: str, **options: Any) -> None:
        self.made: list[SupervisedSandbox] = []
        self.lock = threading.Lock()
        self.envs = TerminalVectorEnv(
            2, suite=Suite(), task=0, sandbox=lambda: self.make(kind, options), timeout=TIMEOUT, max_turns=9
        )
        self.pool = ThreadPoolExecutor(1)

    def make(self, kind: str, options: dict[str, Any]) -> SupervisedSandbox:
        sandbox = make_sandbox(kind, **options)
        assert isinstance(sandbox, SupervisedSandbox)
        with self.lock:
            self.made.append(sandbox)
        return sandbox

    def begin(self) -> None:
        self.envs.reset(seed=0)
        self.step("v=first", "v=second")

    @property
    def first(self) -> SupervisedSandbox:
        """The sandbox that knows it is the first one's."""
        return next(sandbox for sandbox in self.made if sandbox.run("echo $v").output == b"first\n")

    def step(self, first: str, second: str, bound: float = BOUND) -> tuple[str, bool, dict[str, Any]]:
        """The first one's observation, whether it was truncated, and its info; checks the second one and the time."""
        began = time.monotonic()
        observations, _, _, truncated, infos = self.pool.submit(self.envs.step, [first, second]).result(HANG)
        assert time.monotonic() - began < bound
        if second == "echo $v":
            assert observations[1] == "second\n[exit 0] ~"
        info = {key: value[0] for key, value in infos.items() if not key.startswith("_") and infos[f"_{key}"][0]}
        return str(observations[0]), bool(truncated[0]), info

    def goes_on(self) -> None:
        """After a truncated step: the next resets the first one, which then works."""
        self.step("ignored", "echo $v", START)
        assert self.step("echo $v.", "echo $v")[0] == ".\n[exit 0] ~"

    def close(self) -> None:
        self.envs.close()
        self.pool.shutdown()


@pytest.fixture(params=["bubblewrap", "local"])
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "bubblewrap" and (reason := bubblewrap_available()):
        pytest.skip(reason)
    return str(request.param)


@pytest.fixture
def two(kind: str) -> Iterator[Two]:
    two = Two(kind)
    yield two
    two.close()


def test_a_killed_shell_is_an_observation(two: Two) -> None:
    two.begin()
    observation, truncated, _ = two.step("kill -9 $$", "echo $v")
    assert (observation, truncated) == ("[exit 137, shell restarted] ~", False)
    assert two.step("echo $v.", "echo $v")[0] == ".\n[exit 0] ~"


def shell(sandbox: SupervisedSandbox) -> int:
    """The process number of the agent's shell on this machine: the deepest there is between commands."""
    process = sandbox._resources.process
    assert process is not None
    pid = process.pid
    while below := children(pid):
        pid = below[-1]
    return pid


def supervisor(sandbox: SupervisedSandbox) -> int:
    process = sandbox._resources.process
    assert process is not None
    return process.pid


def test_a_shell_killed_from_outside_is_replaced(two: Two) -> None:
    two.begin()
    os.kill(shell(two.first), signal.SIGKILL)
    observation, truncated, _ = two.step("echo $v.", "echo $v")
    assert (observation.endswith(", shell restarted] ~"), truncated) == (True, False)
    assert two.step("echo $v.", "echo $v")[0] == ".\n[exit 0] ~"


def killed(pid: int) -> None:
    send_signal((*descendants(pid), pid), signal.SIGKILL)


@pytest.mark.parametrize("moment", ["before", "during"])
def test_a_supervisor_that_is_gone_truncates(two: Two, moment: str) -> None:
    two.begin()
    pid = supervisor(two.first)
    if moment == "before":
        killed(pid)
        observation, truncated, info = two.step("echo on", "echo $v")
    else:
        timer = threading.Timer(0.5, killed, (pid,))
        timer.start()
        observation, truncated, info = two.step("sleep 1.5; echo on", "echo $v")
        timer.join()
    assert (observation, truncated, info["broken"]) == (BROKEN, True, True)
    assert "supervisor" in info["reason"] or "sandbox" in info["reason"]
    two.goes_on()


def test_a_stopped_shell_ends_at_its_timeout(two: Two) -> None:
    two.begin()
    os.kill(shell(two.first), signal.SIGSTOP)
    observation, truncated, _ = two.step("echo on", "echo $v")
    assert (observation.splitlines()[-1].split(" after")[0], truncated) == ("[timeout", False)
    assert two.step("echo on", "echo $v")[0].startswith("on\n[exit 0")


@pytest.mark.parametrize(
    ("module", "name", "fault"),
    [
        (bubblewrap, "find_program", lambda: ("/nonexistent/bwrap", None)),
        (bubblewrap, "find_program", lambda: (os.__file__, None)),  # there, but no program
        (
            local.tempfile,
            "mkdtemp",
            lambda **_: (_ for _ in ()).throw(PermissionError(13, "Permission denied", "/tmp")),
        ),
        (local.tempfile, "mkdtemp", lambda **_: (_ for _ in ()).throw(OSError(28, "No space left on device", "/tmp"))),
        (os, "pipe", lambda: (_ for _ in ()).throw(OSError(24, "Too many open files"))),
        (os, "pidfd_open", lambda pid: (_ for _ in ()).throw(OSError(24, "Too many open files"))),
    ],
    ids=["program missing", "program broken", "no right to /tmp", "/tmp full", "no descriptors", "no handles"],
)
def test_a_sandbox_that_cannot_be_started_any_more(
    two: Two, kind: str, module: Any, name: str, fault: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if (module is bubblewrap and kind != "bubblewrap") or (module is tempfile and kind != "local"):
        pytest.skip("of the other kind")
    two.begin()
    processes = descendants(os.getpid())
    with monkeypatch.context() as patch:
        two.step("submit", "echo $v", START)
        patch.setattr(module, name, fault)
        two.step("ignored", "echo $v", START)  # resets, and fails
        observation, truncated, info = two.step("echo on", "echo $v")
    # Where the first of all calls fails there is no sandbox to break: the reset itself is told of.
    assert (truncated, info["broken"]) == (True, True), observation
    assert info["reason"]
    assert descendants(os.getpid()) <= processes
    two.goes_on()


def test_a_full_disk_in_the_setup_truncates(kind: str) -> None:
    if kind == "local":
        pytest.skip("its disk is this machine's")
    two = Two("bubblewrap", disk_mib=2)
    two.envs.reset(seed=0)
    two.step("v=first", "v=second")
    two.envs.submit_reset(0, options={"task": 1}).result(HANG)
    observation, truncated, info = two.step("echo on", "echo $v")
    assert (observation, truncated, info["broken"]) == (BROKEN, True, True)
    assert "No space left on device" in info["reason"]
    two.goes_on()
    two.close()


def test_a_full_disk_is_an_observation(kind: str) -> None:
    if kind == "local":
        pytest.skip("its disk is this machine's")
    two = Two("bubblewrap", disk_mib=2)
    two.begin()
    observation, truncated, _ = two.step("yes >~/f; yes >/tmp/f", "echo $v")
    assert (observation.count("No space left on device"), truncated) == (2, False)
    long = f"echo {'a' * 100_000} | wc -c"  # longer than what a here-string keeps without a file
    assert two.step(long, "echo $v")[1] is False
    assert two.step("rm ~/f /tmp/f; echo on", "echo $v")[0] == "on\n[exit 0] ~"
    two.close()


def test_the_directory_of_a_local_sandbox_may_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    two = Two("local")
    two.begin()
    two.step('rm -rf "${HOME%/*}"', "echo $v")
    assert not Path(two.first.workdir).exists()
    assert two.step("echo on", "echo $v")[0].startswith("on\n")
    with pytest.raises(SandboxError):
        two.first.write({"a": "b"})
    two.close()
