"""What breaks while it runs: one episode is truncated, the other goes on, nothing hangs beyond its timeout + 2 s."""

from __future__ import annotations

import functools
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from docker_tools import PID, ours

from obsspec_gym.envs.sandbox import Sandbox, make_sandbox
from obsspec_gym.envs.sandbox.bubblewrap import bubblewrap_available
from obsspec_gym.envs.sandbox.containers import ContainerSupervisor
from obsspec_gym.envs.sandbox.daemon import Daemon
from obsspec_gym.envs.sandbox.docker import DockerSandbox
from obsspec_gym.envs.sandbox.holding import Container
from obsspec_gym.envs.tasks.task import Task
from obsspec_gym.envs.terminal import BROKEN
from obsspec_gym.envs.vector import TerminalVectorEnv

TIMEOUT = 4.0
BOUND = TIMEOUT + 2.0
START = 60.0  # of a container, where the daemon answers: a busy machine is slow, not hanging
TASK = Task(id="t", instruction="Say done.", verifier='test "$ANSWER" = done', max_turns=9)


def stop() -> None:
    """Stops the daemon; returns when every thread of it stands still."""
    os.kill(int(PID or 0), signal.SIGSTOP)
    while any(_state(thread) not in "TZ" for thread in Path(f"/proc/{PID}/task").iterdir()):
        time.sleep(0.005)


def _state(thread: Path) -> str:
    return (thread / "stat").read_text().rpartition(")")[2].split()[0]


def go_on() -> None:
    os.kill(int(PID or 0), signal.SIGCONT)


class Two:
    """Two environments in step; faults are done to the first, and the second must never notice."""

    def __init__(self, *kinds: str, **options: Any) -> None:
        self.made: list[Sandbox] = []
        makes = [functools.partial(make_sandbox, "docker", **options), functools.partial(make_sandbox, kinds[-1])]
        order = itertools.chain(makes, itertools.repeat(makes[0]))  # only the first one's episodes end

        def make() -> Sandbox:
            self.made.append(next(order)())
            return self.made[-1]

        self.envs = TerminalVectorEnv(2, task=TASK, sandbox=make, timeout=TIMEOUT)
        # One after the other, so that the first environment has the first sandbox.
        for env_id in range(2):
            self.envs.submit_reset(env_id).result()
        self.step("v=first", "v=second")

    @property
    def first(self) -> DockerSandbox:
        sandbox = self.made[0]
        assert isinstance(sandbox, DockerSandbox)
        return sandbox

    def step(self, first: str, second: str = "echo $v", bound: float = BOUND) -> tuple[str, bool, dict[str, Any]]:
        """The first one's observation, whether it was truncated, and its info; checks the second one and the time."""
        began = time.monotonic()
        self.envs.send([second], env_ids=[1])
        self.envs.send([first], env_ids=[0])
        results = dict(self.envs.recv(2))
        assert time.monotonic() - began < bound
        if second == "echo $v":
            assert (results[1].observation, results[1].truncated) == ("second\n[exit 0] ~", False)
        return results[0].observation, results[0].truncated, results[0].info

    def breaks(self, command: str, *reasons: str) -> None:
        observation, truncated, info = self.step(command)
        assert (observation, truncated, info["broken"]) == (BROKEN, True, True)
        assert any(reason in info["reason"] for reason in reasons)

    def goes_on(self) -> None:
        """After a truncated step: the next resets the first one, which then works."""
        assert self.step("ignored", bound=START)[0] == TASK.instruction
        assert self.step("echo [$v]")[0] == "[]\n[exit 0] ~"

    def close(self, bound: float = START) -> None:
        began = time.monotonic()
        self.envs.close()
        assert time.monotonic() - began < bound


@pytest.fixture
def two() -> Iterator[Two]:
    """Both in Docker."""
    two = Two("docker", disk_mib=4)
    yield two
    two.close()


@pytest.fixture
def one() -> Iterator[Two]:
    """The first in Docker, whose daemon may stop; the second elsewhere."""
    if reason := bubblewrap_available():
        pytest.skip(reason)
    two = Two("bubblewrap")
    try:
        yield two
    finally:
        go_on()
        two.close()


def before(function: Callable[..., Any], act: Callable[[], None]) -> Callable[..., Any]:
    """A method that first does something else."""

    @functools.wraps(function)
    def acting(*args: Any, **kwargs: Any) -> Any:
        act()
        return function(*args, **kwargs)

    return acting


def test_a_daemon_that_stopped_while_nothing_ran(one: Two) -> None:
    stop()
    one.breaks("echo on", "does not answer")
    go_on()
    one.goes_on()


def test_a_daemon_that_stops_while_a_command_runs(one: Two) -> None:
    timer = threading.Timer(0.5, stop)
    timer.start()
    one.breaks("sleep 1000", "does not answer")
    timer.join()
    go_on()
    one.goes_on()


@pytest.mark.parametrize("command", ["exit", "trap '' INT; while :; do :; done"], ids=["it ends", "it is ended"])
@pytest.mark.parametrize(
    ("owner", "name"),
    [(ContainerSupervisor, "sweep"), (Container, "status"), (Container, "execute"), (ContainerSupervisor, "processes")],
    ids=["sweep", "status", "new shell", "processes"],
)
def test_a_daemon_that_stops_while_the_shell_is_replaced(
    one: Two, owner: Any, name: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each of the questions that are asked then."""
    with monkeypatch.context() as patch:
        timer = threading.Timer(0.2, lambda: patch.setattr(owner, name, before(getattr(owner, name), stop)))
        timer.start()
        _, truncated, info = one.step(f"sleep 0.5; {command}")
        if not truncated:  # the question was not asked in this step: the next one asks, or nobody does
            _, truncated, info = one.step("echo on")
        timer.join()
    assert info["broken"] if truncated else name == "status"  # whose answer is not always needed
    go_on()
    if truncated:
        one.goes_on()


def test_a_daemon_that_stopped_before_a_reset_and_before_the_end(one: Two) -> None:
    stop()
    began = time.monotonic()
    with pytest.raises(Exception, match="no Docker daemon answers"):
        one.envs.submit_reset(0).result()
    assert time.monotonic() - began < BOUND
    go_on()
    one.envs.submit_reset(0).result()
    assert one.step("echo [$v]")[0] == "[]\n[exit 0] ~"
    stop()
    one.close(BOUND)


def test_a_daemon_that_stopped_before_the_verdict(one: Two) -> None:
    stop()
    one.breaks("submit done", "does not answer")
    go_on()
    one.goes_on()


def test_a_daemon_that_stopped_before_the_next_episode(one: Two) -> None:
    assert one.step("submit done")[2]["verifier_output"] == ""
    stop()
    one.step("ignored")  # resets, and fails
    observation, truncated, info = one.step("echo on")
    assert (truncated, info["broken"]) == (True, True), observation
    assert "no Docker daemon answers" in info["reason"]
    go_on()
    one.goes_on()


def test_what_a_stopped_daemon_could_not_be_told_is_gone_when_it_goes_on(one: Two, daemon: Daemon) -> None:
    name = one.first.container
    stop()
    one.breaks("echo on", "does not answer")
    go_on()
    deadline = time.monotonic() + 30.0
    while name in ours(daemon) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert name not in ours(daemon)


@pytest.mark.parametrize("moment", ["before", "during"])
def test_a_container_that_is_removed(two: Two, daemon: Daemon, moment: str) -> None:
    remove = functools.partial(daemon.api.remove_container, two.first.container, force=True)
    timer = threading.Timer(0.3 if moment == "during" else 0.0, remove)
    timer.start()
    if moment == "before":
        timer.join()
    two.breaks("sleep 1000", "gone", "does not answer")
    timer.join()
    two.goes_on()


def test_a_full_disk_is_an_observation(two: Two) -> None:
    observation, truncated, _ = two.step("yes >~/f; yes >/tmp/f")
    assert (observation.count("No space left on device"), truncated) == (2, False)
    assert two.step("rm ~/f /tmp/f; echo on")[0] == "on\n[exit 0] ~"


@pytest.mark.parametrize("command", ["kill -9 $$", "sleep 1000 & kill -9 $$"])
def test_a_killed_shell_is_an_observation(two: Two, command: str) -> None:
    assert two.step(command)[:2] == ("[exit 137, shell restarted] ~", False)
    assert two.step("echo [$v]")[0] == "[]\n[exit 0] ~"


@pytest.mark.parametrize("command", ["kill -STOP $$", "trap '' INT; while :; do :; done", "sleep 1000"])
def test_what_does_not_end_is_stopped(two: Two, command: str) -> None:
    observation, truncated, _ = two.step(command)
    assert (observation.startswith("[timeout after 4 s"), truncated) == (True, False)
    assert two.step("echo on")[0] == "on\n[exit 0] ~"
