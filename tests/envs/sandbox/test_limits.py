"""What uses up a machine ends in an observation or a broken sandbox; the neighbour still answers, nothing is left."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from obsspec_gym.envs.sandbox import Sandbox, bwrap_limits
from obsspec_gym.envs.sandbox.bubblewrap import BubblewrapSandbox, bubblewrap_available, sandbox_uid
from obsspec_gym.envs.sandbox.cgroups import ControlGroup, _controllers, control_groups_available, usual_total_mib
from obsspec_gym.envs.sandbox.processes import children, send_signal
from obsspec_gym.errors import InvalidArgumentError, SandboxError, SandboxUnavailableError

bubblewrapped = pytest.mark.skipif(bubblewrap_available() is not None, reason=str(bubblewrap_available()))
grouped = pytest.mark.skipif(control_groups_available() is not None, reason=str(control_groups_available()))


@pytest.fixture
def neighbour() -> Iterator[Sandbox]:
    sandbox = BubblewrapSandbox(disk_mib=4)
    sandbox.start()
    sandbox.run("v=still; echo here >f")
    yield sandbox
    assert sandbox.run("echo $v $(cat f)").output == b"still here\n"
    sandbox.close()


@pytest.fixture
def sandbox(neighbour: Sandbox) -> Iterator[Sandbox]:
    """A small one: 4 MiB of files each, 256 MiB a process, 40 processes."""
    sandbox = BubblewrapSandbox(disk_mib=4, file_mib=3, memory_mib=256, processes=40)
    sandbox.start()
    yield sandbox
    sandbox.close()


HOGS = {
    "fork bomb": ":(){ :|:& };:; sleep 0.3",
    "fork bomb of programs": "for i in {1..80}; do sleep 30 & done; wait",
    "bomb that moves": "b() { (setsid bash -c 'sleep 0.01; b' &) & }; export -f b; for i in {1..9}; do b; done",
    "endless file": "yes >file",
    "endless file in /tmp": "cat /dev/zero >/tmp/file",
    "endless file in memory": "cat /dev/zero >/dev/shm/file",
    "files up to the disk": "for i in {1..9}; do head -c 900K /dev/zero >$i; done",
    "sparse file": "truncate -s 1T sparse",
    "endless output": "cat /dev/zero",
    "endless line": "yes | tr -d '\\n'",
    "allocation": "python3 -c 'bytearray(2 << 30)'",
    "growing allocation": "python3 -c 'x = \"x\"\nwhile True: x += x'",
    "variable that doubles": "x=x; while :; do x=$x$x; done",
    "deep recursion": "f() { f; }; f",
    "many files": "python3 -c 'for i in range(10**6): open(str(i), \"w\")'",
    "many files in memory": "cd /dev/shm; python3 -c 'import os\nfor i in range(10**6): os.mkdir(str(i))'",
    "many links": "touch a; python3 -c 'import os\nfor i in range(10**6): os.symlink(\"a\", str(i))'",
    "deep tree": "while mkdir d && cd d; do :; done",
    "descriptors": "python3 -c 'x = [open(\"/dev/null\") for _ in range(10**5)]'",
    "pipes": "python3 -c 'import os\nfor _ in range(10**5): os.write(os.pipe()[1], bytes(65536))'",
    "threads": "python3 -c 'import threading\nwhile True: threading.Thread(target=threading.Event().wait).start()'",
    "environment": "export X=$(printf '%2000000s'); ls",
    "arguments": "printf -v x '%3000000s'; /bin/echo $x $x",
    "daemon": "setsid nohup bash -c 'while :; do :; done' >/dev/null 2>&1 &",
    "daemon that prints": "setsid bash -c 'while :; do echo x; done' &",
    "busy loop": "while :; do :; done",
    "core dump": "bash -c 'kill -SEGV $$'; ls core*",
    "stopped": "kill -STOP -1 $$",
}


@bubblewrapped
@pytest.mark.parametrize("name", HOGS)
def test_a_hog_ends_in_an_observation(name: str, sandbox: Sandbox) -> None:
    if sandbox_uid() == 0 and control_groups_available():
        pytest.skip("sandboxes are started as root here, whose processes nothing bounds")
    result = sandbox.run(HOGS[name], 1.0)
    assert len(result.output) <= 65_536
    # As much of a sandbox as its shell must always come back, though what a hog left running may fill it up.
    for _ in range(3):
        again = sandbox.run("kill -9 -1 2>/dev/null; unset X; cd; echo on", 5.0)
        if not again.restarted and again.output.endswith(b"on\n"):
            break
    assert again.output.endswith(b"on\n")
    assert sandbox.run("cd; rm -rf ~/* /tmp/* /dev/shm/*; echo x >f && cat f", 30.0).output == b"x\n"


@bubblewrapped
@pytest.mark.parametrize("where", ["~", "/tmp", "/dev/shm"])
def test_the_number_of_files_is_bounded(where: str, sandbox: Sandbox) -> None:
    assert sandbox.run("command -v mount").exit_code == 0, "the supervisor needs mount for this"
    result = sandbox.run(f"cd {where} && mkdir {{1..5000}}", 30.0)
    assert b"No space left on device" in result.output
    assert int(sandbox.run("ls | wc -l").output) < 4 * 1024


@bubblewrapped
def test_a_full_disk_does_not_keep_verifiers_from_judging(sandbox: Sandbox) -> None:
    sandbox.run(
        "for i in {1..9}; do head -c 900K /dev/zero >$i; head -c 900K /dev/zero >/tmp/$i; done; mkdir {1..5000}"
    )
    assert sandbox.verify('cat "$VERIFIER/a"', {"a": "x" * 100_000}, {}).output_bytes == 100_000
    key = secrets.token_bytes(200_000)  # that nothing compresses
    assert sandbox.verify('cat "$VERIFIER/a"', {"a": key}, {}).output_bytes == 200_000
    with pytest.raises(SandboxError, match="No space left"):
        sandbox.write({"b": b"x" * 2_000_000})
    assert sandbox.run("echo on").output == b"on\n"


@bubblewrapped
@grouped
def test_the_memory_of_all_processes_and_files_is_bounded(neighbour: Sandbox) -> None:
    sandbox = BubblewrapSandbox(disk_mib=24, total_mib=64, processes=40)
    sandbox.start()
    result = sandbox.run("python3 -c 'print(len(bytearray(128 << 20)))'", 30.0)
    assert (result.output, result.exit_code) == (b"", 137)
    for command in (
        "for i in {1..6}; do python3 -c 'x = bytearray(24 << 20); input()' <&1 & done; wait",
        "yes >a",
        ":",
    ):
        sandbox.run(command, 2.0)
    for _ in range(3):
        again = sandbox.run("rm -f a; echo on")
    assert again.output == b"on\n"
    sandbox.close()


# Those that a sandbox of the usual size may be left with on any machine: none takes more than some hundred MiB.
SAFE_HOGS = [
    "fork bomb",
    "fork bomb of programs",
    "bomb that moves",
    "endless file",
    "endless file in /tmp",
    "sparse file",
    "endless output",
    "deep tree",
    "descriptors",
    "daemon",
    "busy loop",
    "stopped",
]


@bubblewrapped
@pytest.mark.parametrize("name", SAFE_HOGS)
def test_a_hog_ends_in_an_observation_at_the_usual_size(name: str, neighbour: Sandbox) -> None:
    sandbox = BubblewrapSandbox()
    sandbox.start()
    test_a_hog_ends_in_an_observation(name, sandbox)
    sandbox.close()


@bubblewrapped
@grouped
def test_all_of_a_sandbox_is_bounded_where_nobody_says_how_much(monkeypatch: pytest.MonkeyPatch) -> None:
    parents = _controllers(Path("/proc/self"))
    with contextlib.closing(BubblewrapSandbox(disk_mib=8, memory_mib=100, processes=40)) as sandbox:
        sandbox.start()
        name = next(parents.pids.glob(f"obsspec-{os.getpid()}-*")).name
        assert (parents.pids / name / "pids.max").read_text() == f"{40 + 32}\n"
        bound = "memory.limit_in_bytes" if parents.version == 1 else "memory.max"
        assert int((parents.memory / name / bound).read_text()) == (3 * 8 + 100) * 2**20
        inside = set((parents.memory / name / "cgroup.procs").read_text().split())
        sandbox.run("sleep 60 & sleep 60 &")
        assert len(set((parents.memory / name / "cgroup.procs").read_text().split()) - inside) == 2
        twin = sandbox.fork()
        assert len(list(parents.pids.glob(f"obsspec-{os.getpid()}-*"))) == 2
        twin.close()
    assert usual_total_mib(2**30, 2**30) < 2**30  # never more than half of a machine
    monkeypatch.setattr(bwrap_limits, "control_groups_available", lambda: "there are none")
    with contextlib.closing(BubblewrapSandbox()) as sandbox:
        sandbox.start()
        assert list(parents.pids.glob(f"obsspec-{os.getpid()}-*")) == []


@grouped
def test_a_process_that_cannot_be_taken_in_is_no_started_sandbox() -> None:
    group = ControlGroup(64, 16)
    group.admit(2**22 + 7)  # above the largest process number
    with pytest.raises(SandboxError, match="into its control group"):
        group.confirm()
    group.remove()


@bubblewrapped
@grouped
def test_groups_are_removed() -> None:
    parents = _controllers(Path("/proc/self"))
    sandbox = BubblewrapSandbox(total_mib=128)
    sandbox.start()
    mine = list(parents.pids.glob(f"obsspec-{os.getpid()}-*"))
    assert len(mine) == 1
    assert len((mine[0] / "cgroup.procs").read_text().split()) >= 3
    sandbox.run("(setsid sleep 100 &)")
    sandbox.close()
    for parent in (parents.memory, parents.pids):
        assert list(parent.glob(f"obsspec-{os.getpid()}-*")) == []


@grouped
def test_empty_groups_of_the_dead_are_swept() -> None:
    parent = _controllers(Path("/proc/self")).pids
    left = parent / f"obsspec-{2**22 + 7}-dead"  # above the largest process number
    left.mkdir()
    ControlGroup(64, 16).remove()
    assert not left.exists()


def proc(directory: Path, cgroup: str, mountinfo: str) -> Path:
    """What /proc says of a process."""
    (directory / "cgroup").write_text(cgroup)
    (directory / "mountinfo").write_text(mountinfo)
    return directory


def test_our_group_is_found_in_version_1(tmp_path: Path) -> None:
    here = proc(
        tmp_path,
        "9:pids:/a\n4:cpu,memory:/box/b\n0::/\n",
        "30 1 0:1 / /cg/pids rw - cgroup cgroup rw,pids\n31 1 0:2 /box /cg/memory rw - cgroup cgroup rw,cpu,memory\n"
        "32 1 0:3 / /cg/unified rw - cgroup2 cgroup2 rw\n33 1 0:4 / / rw shared:1 - ext4 /dev/x rw\n",
    )
    found = _controllers(here)
    assert (str(found.memory), str(found.pids), found.version) == ("/cg/memory/b", "/cg/pids/a", 1)


def test_our_group_is_found_in_version_2(tmp_path: Path) -> None:
    group = tmp_path / "user" / "mine"
    group.mkdir(parents=True)
    here = proc(tmp_path, "0::/user/mine\n", f"30 1 0:1 / {tmp_path} rw - cgroup2 cgroup2 rw\n")
    (group / "cgroup.controllers").write_text("cpu pids\n")
    (group / "cgroup.subtree_control").write_text("")
    with pytest.raises(SandboxUnavailableError, match="no controller for memory"):
        _controllers(here)
    (group / "cgroup.controllers").write_text("cpu memory pids\n")
    found = _controllers(here)
    assert (found.memory, found.pids, found.version) == (group, group, 2)
    assert (group / "cgroup.subtree_control").read_text() == "+memory +pids"


def test_where_there_are_no_groups_we_say_so(tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailableError, match="no control groups"):
        _controllers(proc(tmp_path, "0::/\n", "33 1 0:4 / / rw - ext4 /dev/x rw\n"))


@bubblewrapped
def test_sandboxes_are_not_root_s() -> None:
    """The kernel bounds no number of processes for root."""
    if os.geteuid() == 0 and shutil.which("setpriv"):
        assert sandbox_uid() != 0


def test_limits_are_checked() -> None:
    with pytest.raises(InvalidArgumentError, match="total_mib must be at least 1, got 0"):
        BubblewrapSandbox(total_mib=0)


@bubblewrapped
@grouped
def test_who_removes_a_group_holds_none_of_the_sandbox_s_pipes() -> None:
    """Or whoever writes into one would not see that its reader is gone."""
    group = ControlGroup(64, 16)
    reader, writer = os.pipe()
    words = [*group.prefix, "bash", "-c", f"exec {writer}>&-; exec sleep 60"]
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, pass_fds=[writer]) as guard:
        try:
            os.close(writer)
            assert select.select([reader], [], [], 20.0)[0]
            assert os.read(reader, 1) == b""
            assert len(children(guard.pid)) == 1  # all of them are still there
        finally:
            send_signal([*children(guard.pid), guard.pid], signal.SIGKILL)
    os.close(reader)
    group.remove()
