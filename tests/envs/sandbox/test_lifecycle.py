"""Starting, closing, dying: nothing is ever left, whatever happens."""

from __future__ import annotations

import contextlib
import gc
import glob
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sandbox_kinds import KINDS

from obsspec_gym.envs.sandbox import Sandbox, layers, local, make_sandbox
from obsspec_gym.envs.sandbox.bubblewrap import bubblewrap_available
from obsspec_gym.envs.sandbox.local import NoIsolationWarning
from obsspec_gym.envs.sandbox.processes import descendants, start_time
from obsspec_gym.envs.sandbox.sessions import Session
from obsspec_gym.errors import ClosedError, InvalidArgumentError, SandboxError

pytestmark = pytest.mark.filterwarnings("ignore::obsspec_gym.envs.sandbox.local.NoIsolationWarning")


def running(argument: str) -> list[int]:
    """Processes that have ``argument`` on their command line."""
    found = []
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            if argument.encode() in Path(path).read_bytes().split(b"\0"):
                found.append(int(path.split("/")[2]))
        except OSError:
            continue
    return found


def eventually(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def directories() -> set[str]:
    return set(os.listdir(tempfile.gettempdir()))


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """After each test: no process, descriptor or directory more than before."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    gc.collect()
    before = descendants(os.getpid()), directories(), len(os.listdir("/proc/self/fd"))
    yield
    gc.collect()
    assert eventually(lambda: descendants(os.getpid()) <= before[0])
    assert eventually(lambda: directories() <= before[1])
    assert len(os.listdir("/proc/self/fd")) <= before[2]


# What happens to containers has tests of its own.
@pytest.fixture(params=[kind for kind in KINDS if kind != "docker"])
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "bubblewrap" and (reason := bubblewrap_available()):
        pytest.skip(reason)
    return str(request.param)


def test_constructors_start_nothing(kind: str) -> None:
    before = descendants(os.getpid())
    sandbox = make_sandbox(kind)
    assert isinstance(sandbox, Sandbox)
    assert descendants(os.getpid()) == before
    with pytest.raises(SandboxError, match="not started"):
        sandbox.run("true")
    sandbox.close()
    with pytest.raises(ClosedError):
        sandbox.start()


def test_close_ends_everything(kind: str) -> None:
    sandbox = make_sandbox(kind)
    sandbox.start()
    sandbox.start()
    token = f"98765.{os.getpid()}1"
    sandbox.run(f"sleep {token} & (setsid sleep {token} &) & nohup setsid bash -c 'sleep {token}; true' & sleep 0.1")
    assert len(running(token)) >= 3
    sandbox.close()
    sandbox.close()
    assert eventually(lambda: not running(token))
    with pytest.raises(ClosedError, match="closed"):
        sandbox.run("true")


def test_the_end_of_the_shell_ends_what_it_started(kind: str) -> None:
    sandbox = make_sandbox(kind)
    sandbox.start()
    token = f"98765.{os.getpid()}2"
    sandbox.run(f"setsid sleep {token} & sleep 0.05")
    assert running(token)
    assert sandbox.run("exit").restarted
    assert not running(token)
    sandbox.close()


def test_an_unreferenced_sandbox_is_closed(kind: str) -> None:
    sandbox = make_sandbox(kind)
    sandbox.start()
    sandbox.run("sleep 1000 &")
    del sandbox  # and the fixture looks


def test_an_exception_of_the_owner_leaves_it_closable(kind: str) -> None:
    def own() -> None:
        with contextlib.closing(make_sandbox(kind)) as sandbox:
            sandbox.start()
            sandbox.run(f"sleep {1 // 0}")

    with pytest.raises(ZeroDivisionError):
        own()


def test_nothing_outlives_a_killed_owner(kind: str) -> None:
    token = f"98765.{os.getpid()}3"
    script = (
        "import json, os, signal, warnings; warnings.simplefilter('ignore')\n"
        "from obsspec_gym.envs.sandbox import make_sandbox\n"
        "from obsspec_gym.envs.sandbox.processes import descendants, start_time\n"
        f"sandbox = make_sandbox({kind!r}); sandbox.start()\n"
        f"sandbox.run('sleep {token} & sleep {token}', 0.3)\n"
        f"sandbox.run('sleep {token} &')\n"
        "print(json.dumps({pid: start_time(pid) for pid in descendants(os.getpid())}), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert eventually(lambda: not running(token))
    below = json.loads(done.stdout)
    assert len(below) >= 3  # the supervisor, the shell, the sleep, and what starts them
    assert eventually(lambda: not [pid for pid, time in below.items() if start_time(int(pid)) == time])
    # The fixture looks for directories, which the supervisor removes.


def interrupted(action: Callable[[], object], seconds: float) -> bool:
    """Runs an action that is interrupted after some time, as by Ctrl-C; whether it was before it ended."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    earlier = signal.signal(signal.SIGUSR1, interrupt)
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(seconds, signal.pthread_kill, (main, signal.SIGUSR1))
    try:
        timer.start()
        action()
        timer.join()
        return False
    except KeyboardInterrupt:
        return True
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, earlier)


def test_an_interrupted_command_leaves_the_sandbox_usable(kind: str) -> None:
    sandbox = make_sandbox(kind)
    sandbox.start()
    sandbox.run("cd /")
    assert interrupted(lambda: sandbox.run("echo a; sleep 1000"), 0.2)
    result = sandbox.run("echo b; pwd")
    assert (result.output, result.exit_code, result.restarted) == (b"b\n/\n", 0, True)
    sandbox.close()


# Only this: an interrupt inside pathlib's own read of a file of /proc, which the collector closes at once and says so.
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <_io.FileIO name=./proc/:pytest.PytestUnraisableExceptionWarning"
)
def test_interrupts_at_random_moments_leave_nothing(kind: str) -> None:
    rng = random.Random(0)
    hits = 0
    for _ in range(12):
        sandbox = make_sandbox(kind)

        def life(sandbox: Sandbox = sandbox) -> None:
            sandbox.start()
            sandbox.write({"a": "b"})
            sandbox.run("sleep 1000 & exit")
            sandbox.run("sleep 0.02")
            sandbox.verify("true", {"x": "y"}, {})
            sandbox.close()

        hits += interrupted(life, rng.uniform(0.001, 0.2))
        sandbox.close()
    assert hits > 0


def test_an_interrupt_while_a_process_is_started_leaves_none(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anybody could have taken note of it, which takes longest where a machine is busy."""
    popen = subprocess.Popen

    def slow(*words: object, **options: object) -> object:
        process = popen(*words, **options)  # type: ignore[call-overload]
        time.sleep(0.3)
        return process

    sandbox = make_sandbox(kind)
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", slow)
        assert interrupted(sandbox.start, 0.15)
    sandbox.close()  # and the fixture looks


@pytest.mark.parametrize("call", range(3))
def test_a_shell_whose_end_is_interrupted_is_ended_by_whoever_comes_next(
    kind: str, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever an interrupt falls into ending a shell, its processes and descriptors stay known until they are gone."""
    end, calls = Session.end_processes, itertools.count()

    def interrupted_end(session: Session) -> None:
        if next(calls) == call:
            raise KeyboardInterrupt
        end(session)

    sandbox = make_sandbox(kind)
    sandbox.start()

    def life() -> None:
        sandbox.run("exit 3")
        sandbox.verify("true", {}, {})

    with monkeypatch.context() as patch:
        patch.setattr(Session, "end_processes", interrupted_end)
        with pytest.raises(KeyboardInterrupt):
            life()
    assert sandbox.run("echo on").output == b"on\n"
    sandbox.close()


def test_close_from_another_thread_ends_a_running_command(kind: str) -> None:
    sandbox = make_sandbox(kind)
    sandbox.start()
    with ThreadPoolExecutor(1) as pool:
        command = pool.submit(sandbox.run, "sleep 1000", 900.0)
        time.sleep(0.2)
        sandbox.close()
        with pytest.raises(ClosedError, match="closed while it was in use"):
            command.result(timeout=30)


def test_threads_that_end_do_not_take_their_sandboxes_along(kind: str) -> None:
    def begin(number: int) -> Sandbox:
        sandbox = make_sandbox(kind)
        sandbox.start()
        sandbox.run(f"n={number}")
        return sandbox

    with ThreadPoolExecutor(4) as pool:
        sandboxes = list(pool.map(begin, range(4)))
    for number, sandbox in enumerate(sandboxes):
        assert sandbox.run("echo $n").output == b"%d\n" % number
        sandbox.close()


def test_the_local_sandbox_says_what_it_is() -> None:
    sandbox = make_sandbox("local")
    with pytest.warns(NoIsolationWarning, match="isolates nothing"):
        sandbox.start()
    sandbox.close()


def test_unknown_kinds_and_options_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="kind of sandbox 'vm': expected one of bubblewrap, docker, local"):
        make_sandbox("vm")
    with pytest.raises(InvalidArgumentError, match="colour"):
        make_sandbox("bubblewrap", colour="red")
    with pytest.raises(InvalidArgumentError, match="disk_mib must be at least 1, got 0"):
        make_sandbox("bubblewrap", disk_mib=0)


def test_processes_that_do_not_end_are_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    never = 2**22 + 7  # above the largest process number: it does not end, and nobody is hurt
    monkeypatch.setattr(layers, "with_environment", lambda mark: {never})
    monkeypatch.setattr(layers, "STRAY_SECONDS", 0.05)
    resources = layers.Resources(mark=b"HOME=/nowhere")
    resources.release()
    assert f"do not end: {never}" in caplog.text
    assert resources.mark == b""


def test_the_supervisor_gives_them_up_as_well() -> None:
    """What tidies up when this process was killed: with programs that find one process for ever and never end it."""
    fakes = "grep() { echo /proc/4194311/environ; }; kill() { ((kills++)); }; sleep() { ((sleeps++)); }; "
    script = fakes + local._END_STRAYS.format(mark="HOME=/nowhere") + "; echo $kills $sleeps"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "200 200\n"
