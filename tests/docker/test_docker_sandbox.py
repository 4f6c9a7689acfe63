"""A container as a sandbox: what it is given, what is kept from the agent, and how it breaks."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from docker_tools import PID, ours

from obsspec_gym.envs.sandbox import Sandbox, make_sandbox
from obsspec_gym.envs.sandbox.daemon import Daemon
from obsspec_gym.envs.sandbox.docker import DockerSandbox
from obsspec_gym.envs.sandbox.layers import ENVIRONMENT
from obsspec_gym.errors import ClosedError, InvalidArgumentError, SandboxError, SandboxUnavailableError


def said(sandbox: Sandbox, command: str) -> str:
    return sandbox.run(command).output.decode().strip()


def container(sandbox: DockerSandbox) -> str:
    return sandbox._container.name


def eventually(condition: Callable[[], bool], seconds: float = 30.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


@contextmanager
def soon(action: Callable[[], object], seconds: float = 0.3) -> Iterator[None]:
    """Does something in a moment, in another thread."""
    timer = threading.Timer(seconds, action)
    timer.start()
    try:
        yield
    finally:
        timer.join()


def test_it_looks_like_the_other_sandboxes(docker_sandbox: DockerSandbox) -> None:
    assert isinstance(docker_sandbox, Sandbox)
    assert said(docker_sandbox, "pwd; id -u; id -un; hostname; umask") == "/home/agent\n1000\nagent\nsandbox\n0022"
    assert said(docker_sandbox, "env | cut -d= -f1 | sort | tr '\\n' ' '").split() == sorted(
        [*ENVIRONMENT, "HOME", "PWD", "SHLVL", "_"]
    )


def test_the_agent_has_no_rights(docker_sandbox: DockerSandbox) -> None:
    lines = said(docker_sandbox, "grep -E '^(Cap|NoNew|Seccomp:)' /proc/self/status").splitlines()
    status = dict(line.split(":	") for line in lines)
    assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {"0" * 16}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert said(docker_sandbox, "ls /sys/class/net") == "lo"
    for command in (
        "touch /x",
        "touch /etc/x",
        "touch /usr/bin/x",
        "chown root .",
        "unshare -r true",
        "cat /etc/shadow",
    ):
        assert docker_sandbox.run(command).exit_code != 0, command


def test_the_supervisor_is_out_of_reach(docker_sandbox: DockerSandbox) -> None:
    assert said(docker_sandbox, "cat /proc/1/comm; ls /proc/1/fd 2>&1; cat /proc/1/environ 2>&1").count("denied") == 2
    assert docker_sandbox.run("kill -9 1; echo x >/proc/1/fd/0").exit_code != 0
    assert docker_sandbox.run("kill -9 -1; kill -9 $$").exit_code == 137
    assert said(docker_sandbox, "echo on; ls /verifier 2>&1").startswith("on\nls: cannot open")


def test_an_agent_that_is_root_cannot_end_or_read_the_supervisor() -> None:
    sandbox = DockerSandbox(user="root", workdir="/work", env={"GIVEN": "1"})
    sandbox.start()
    assert (
        sandbox.provision(
            "useradd x 2>/dev/null; echo made >/etc/made; cat $BUILD/f; chown 1000 /etc/made", {"f": "F"}
        ).output
        == b"F"
    )
    assert said(sandbox, "id -u; pwd; echo $GIVEN $HOME; cat /etc/made; ls /verifier") == "0\n/work\n1 /root\nmade"
    assert said(sandbox, "grep -E 'CapEff|CapBnd' /proc/self/status | cut -f2 | sort -u") == "0" * 16
    assert "denied" in said(sandbox, "ls -l /proc/1/fd/ 2>&1; cat /proc/1/environ 2>&1")
    sandbox.run("for s in HUP INT QUIT TERM USR1 STOP KILL; do kill -$s 1; done; kill -9 -1")
    sandbox.write({"laid": "1\n"})
    assert said(sandbox, "cat laid; touch /usr/bin/x && echo may") == "1\nmay"
    assert sandbox.verify("id -u; cat $VERIFIER/f; pwd", {"f": "F\n"}, {}).output == b"0\nF\n/work\n"
    sandbox.close()


def test_orphans_are_taken_up(docker_sandbox: DockerSandbox) -> None:
    docker_sandbox.run("for i in 1 2 3; do (setsid sleep 0.01 &); done; sleep 0.3")
    assert said(docker_sandbox, "ps -e -o stat= | grep -c Z; true") == "0"


def test_it_is_bounded() -> None:
    sandbox = DockerSandbox(disk_mib=8, memory_mib=96, processes=40, file_mib=4)
    sandbox.start()
    assert b"No space left" in sandbox.run("head -c 3M /dev/zero >a; cp a b; cp a c").output
    assert (
        b"No space left"
        in sandbox.run("mkdir d; cd d; for i in {1..10000}; do >$i || break; done 2>&1; cd; rm -rf d a b c").output
    )
    assert sandbox.run("head -c 5M /dev/zero >large").exit_code != 0
    assert sandbox.run("rm -f large; python3 -c 'x = bytearray(300 << 20)'").exit_code == 137
    bomb = sandbox.run("f() { f | f & }; f 2>/dev/null; sleep 1000", 0.5)
    assert bomb.timed_out
    assert said(sandbox, "echo on") == "on"
    sandbox.run("exit")
    assert said(sandbox, "echo on; ps -e | wc -l").startswith("on\n")
    sandbox.close()


@pytest.mark.parametrize("options", [{"disk_mib": 0}, {"cpus": 0.0}, {"workdir": "/x"}, {"colour": 1}, {"user": "a b"}])
def test_bad_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(InvalidArgumentError):
        make_sandbox("docker", **options)


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SandboxUnavailableError, match=r"no image no-such-image.*docker pull no-such-image"):
        DockerSandbox(image="no-such-image").start()
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere.sock")
    with pytest.raises(SandboxUnavailableError, match=r"no Docker daemon answers at unix:///nowhere.sock"):
        DockerSandbox().start()
    monkeypatch.setenv("DOCKER_HOST", "ssh://host")
    with pytest.raises(SandboxUnavailableError, match="must be unix://PATH or tcp://"):
        DockerSandbox().start()


def test_constructors_start_nothing_and_close_leaves_nothing(daemon: Daemon) -> None:
    sandbox = DockerSandbox()
    with pytest.raises(SandboxError, match="not started"):
        sandbox.run("true")
    gc.collect()
    before = ours(daemon), len(os.listdir("/proc/self/fd")), threading.active_count()
    sandbox.start()
    sandbox.start()
    assert len(ours(daemon)) == len(before[0]) + 1
    sandbox.run("sleep 1000 & exit")
    sandbox.verify("true", {"a": "b"}, {})
    sandbox.close()
    sandbox.close()
    gc.collect()
    assert (ours(daemon), len(os.listdir("/proc/self/fd")), threading.active_count()) == before
    with pytest.raises(ClosedError):
        sandbox.run("true")


def test_an_unreferenced_sandbox_is_removed(daemon: Daemon) -> None:
    before = ours(daemon)
    sandbox = DockerSandbox()
    sandbox.start()
    del sandbox
    gc.collect()
    assert eventually(lambda: ours(daemon) == before)


def test_close_from_another_thread_ends_a_command(docker_sandbox: DockerSandbox) -> None:
    with ThreadPoolExecutor(1) as pool:
        command = pool.submit(docker_sandbox.run, "sleep 1000", 900.0)
        time.sleep(0.3)
        docker_sandbox.close()
        with pytest.raises(ClosedError, match="closed while it was in use"):
            command.result(timeout=30)


def test_a_container_that_is_removed(docker_sandbox: DockerSandbox, daemon: Daemon) -> None:
    remove = lambda: daemon.api.remove_container(container(docker_sandbox), force=True)  # noqa: E731
    with soon(remove), pytest.raises(SandboxError, match="the container is gone"):
        docker_sandbox.run("sleep 1000", 900.0)
    with pytest.raises(SandboxError, match="gone"):
        docker_sandbox.run("true")


def test_a_daemon_that_hangs_holds_nobody(docker_sandbox: DockerSandbox) -> None:
    docker_sandbox.run("true")
    os.kill(int(PID or 0), signal.SIGSTOP)
    try:
        began = time.monotonic()
        with pytest.raises(SandboxError, match="does not answer"):
            docker_sandbox.run("sleep 1000", 0.5)
        docker_sandbox.close()
        assert time.monotonic() - began < 0.5 + 2.0 + 1.0
    finally:
        os.kill(int(PID or 0), signal.SIGCONT)


def test_a_full_disk_is_no_end(docker_sandbox: DockerSandbox) -> None:
    docker_sandbox.run("cat /dev/zero >fill; cat /dev/zero >/tmp/fill; cat /dev/zero >/dev/shm/fill")
    assert docker_sandbox.verify("cat $VERIFIER/a", {"a": "b" * 100_000}, {}).output_bytes == 100_000
    with pytest.raises(SandboxError, match="could not be laid"):
        docker_sandbox.write({"a": "b" * 100_000})
    assert said(docker_sandbox, "rm fill /tmp/fill; echo on") == "on"


def test_every_connection_is_closed_whoever_lost_it(daemon: Daemon) -> None:
    sandbox = DockerSandbox()
    sandbox.start()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    # As after a Ctrl-C between the start of a process and the moment when somebody answers for it.
    lost = [sandbox._container.execute("0:0", ["sleep", "1000"])[0] for _ in range(3)]
    assert len(os.listdir("/proc/self/fd")) > before
    sandbox.close()
    assert all(pipes.closed for pipes in lost)
    assert len(os.listdir("/proc/self/fd")) < before


def test_a_fork_keeps_no_descriptor_that_it_does_not_need(docker_sandbox: DockerSandbox) -> None:
    counts = []
    for _ in range(3):  # the first leaves a connection to the daemon open, for the next question
        twin = docker_sandbox.fork()
        assert twin._resources.pipes._open == set()
        twin.close()
        counts.append(len(os.listdir("/proc/self/fd")))
    assert counts[0] == counts[-1]


def test_no_process_leaves_a_descriptor_behind(docker_sandbox: DockerSandbox) -> None:
    counts = []
    for _ in range(4):
        docker_sandbox.write({"a": "b"})
        docker_sandbox.run("exit")
        docker_sandbox.verify("true", {}, {})
        counts.append(len(os.listdir("/proc/self/fd")))
    assert counts[0] == counts[-1]


def test_a_fork_that_cannot_be_is_refused_before_anything_is_started(daemon: Daemon) -> None:
    sandbox = DockerSandbox(user="root", workdir="/work")
    sandbox.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DockerSandbox, "start", lambda self: pytest.fail("started"))
        patch.setattr(DockerSandbox, "_start", lambda self, origin: pytest.fail("started"))
        with pytest.raises(SandboxError, match="cannot be forked"):
            sandbox.fork()
    assert said(sandbox, "echo on") == "on"
    sandbox.close()
    with pytest.raises(ClosedError):
        sandbox.fork()


def test_forks_are_apart(docker_sandbox: DockerSandbox) -> None:
    docker_sandbox.run("mkdir -p src; cd src; echo 1 >a; ln -s a b; chmod 600 a; echo t >/tmp/t; x=1")
    twin = docker_sandbox.fork()
    assert said(twin, "pwd; cat a b /tmp/t; stat -c %a a; echo [$x]") == "/home/agent/src\n1\n1\nt\n600\n[]"
    twin.run("echo 2 >a")
    assert said(docker_sandbox, "cat a; echo [$x]") == "1\n[1]"
    twin.close()
