"""Whenever it is interrupted, nothing is left: no process, no file in the temporary directory."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest

from obsspec_gym.cli import no_interrupt_lost
from obsspec_gym.envs.sandbox.processes import descendants

PR_SET_CHILD_SUBREAPER = 36

EXPERT = ["--policy", "expert", "--world-model", "memory", "--think", "0.1"]
SMALL = ["--episodes", "8", "--group", "4", "--envs", "3", "--suite", "basics/config"]
SLOW = ["--latency", "lognormal:0.2,0.7"]  # or else it may have ended before it is interrupted


@pytest.fixture
def adopts_orphans() -> Iterator[set[int]]:
    """Whatever outlives its parent becomes this process's child, wherever it went: then it can be seen."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    yield alive()
    assert libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) == 0


def alive() -> set[int]:
    """This process's descendants that still run (the ended ones that nobody has asked about yet do not count)."""
    running = set()
    for pid in descendants(os.getpid()):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z":
            running.add(pid)
    return running


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    """Starts ``obsspec``, once a test."""
    started: list[Started] = []

    def begin(*arguments: str) -> Started:
        started.append(Started(list(arguments), tmp_path))
        return started[-1]

    yield begin
    for each in started:
        each.end()


class Started:
    """``obsspec`` in a process and a session of its own, with a temporary directory of its own."""

    def __init__(self, arguments: list[str], directory: Path) -> None:
        self.temporary = directory / "tmp"
        self.temporary.mkdir()
        self._log = directory / "stderr"
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "obsspec_gym.cli", *arguments, "--out", str(directory / "out")],
                stdout=subprocess.DEVNULL,
                stderr=log,
                env={**os.environ, "TMPDIR": str(self.temporary), "HF_HUB_OFFLINE": "1"},
                start_new_session=True,
            )

    def end(self) -> None:
        if self.process.poll() is None:  # the test failed
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    @property
    def said(self) -> str:
        return self._log.read_text()

    def wait_for(self, text: str) -> None:
        while text not in self.said and self.process.poll() is None:
            time.sleep(0.02)
        assert text in self.said, self.said

    def interrupt(self, how: str) -> int:
        """As a terminal does (the whole process group), or as ``kill`` does."""
        if how == "group":
            os.killpg(self.process.pid, signal.SIGINT)
        else:
            self.process.send_signal(signal.SIGINT if how == "process" else signal.SIGTERM)
        return self.process.wait(120)


def assert_nothing_is_left(started: Started, before: set[int]) -> None:
    deadline = time.monotonic() + 20
    while alive() - before and time.monotonic() < deadline:
        time.sleep(0.05)
    left = {pid: Path(f"/proc/{pid}/cmdline").read_bytes()[:200] for pid in alive() - before}
    assert not left
    assert list(started.temporary.iterdir()) == []


@pytest.mark.parametrize(("seed", "how"), list(enumerate(["group", "process", "group", "terminate"])))
def test_interrupted_under_way(seed, how, start, adopts_orphans):
    started = start("demo", *EXPERT, *SMALL, *SLOW)
    started.wait_for("sequential: 8 episodes")
    time.sleep(Random(seed).uniform(0, 3))
    assert started.interrupt(how) == 130
    assert started.said.endswith("obsspec: interrupted; everything that was started is ended\n")
    assert "Traceback" not in started.said
    assert_nothing_is_left(started, adopts_orphans)


def test_interrupted_without_isolation(start, adopts_orphans):
    started = start("rollout", *EXPERT, *SMALL, *SLOW, "--sandbox", "local")
    started.wait_for("rollout: 8 episodes")
    while not list(started.temporary.iterdir()):  # the first sandbox's home
        time.sleep(0.01)
    time.sleep(Random(4).uniform(0, 1))
    assert started.interrupt("group") == 130
    assert_nothing_is_left(started, adopts_orphans)


@pytest.mark.parametrize("seed", [5, 6])
def test_interrupted_while_it_starts(seed, start, adopts_orphans):
    started = start("demo", *EXPERT, *SMALL)
    time.sleep(Random(seed).uniform(0, 1.5))
    assert started.interrupt("process") != 0
    assert_nothing_is_left(started, adopts_orphans)


class Unraisable:
    """Where Python swallows what is raised."""

    def __del__(self) -> None:
        raise KeyboardInterrupt


def test_an_interrupt_that_python_swallows_comes_again():
    def swallow() -> None:
        Unraisable()
        time.sleep(20)

    with pytest.raises(KeyboardInterrupt), no_interrupt_lost():
        swallow()


def test_other_faults_of_finalisers_are_told_as_ever(monkeypatch):
    told = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    hook = sys.unraisablehook
    with no_interrupt_lost():
        sys.unraisablehook(SimpleNamespace(exc_type=ValueError))
    assert [each.exc_type for each in told] == [ValueError]
    assert sys.unraisablehook == hook


@pytest.mark.timeout(400)  # torch is imported in three processes
@pytest.mark.parametrize("seed", [7])
def test_interrupted_with_language_models(seed, start, adopts_orphans, tiny_pair):
    pair = ["--policy", str(tiny_pair[0]), "--world-model", "memory", "--max-tokens", "8"]
    started = start("rollout", *pair, *SMALL, *SLOW)
    started.wait_for("rollout: 8 episodes")
    time.sleep(Random(seed).uniform(0, 2))
    assert started.interrupt("group") == 130
    assert "Traceback" not in started.said
    assert_nothing_is_left(started, adopts_orphans)


def test_an_exception_leaves_nothing_either(start, tmp_path, adopts_orphans):
    (tmp_path / "out" / "speculative.jsonl").mkdir(parents=True)  # where a file is to be written
    few = ["--episodes", "1", "--group", "1", "--envs", "1", "--suite", "basics/config", "--latency", "none"]
    started = start("demo", *EXPERT, *few)
    assert started.process.wait(120) == 1
    assert "IsADirectoryError" in started.said
    assert_nothing_is_left(started, adopts_orphans)
