"""What an agent's commands cannot reach, one test an item, on every kind of sandbox that promises it.

A local sandbox promises none of this but the environment; see ``docs/sandboxes.md``.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from obsspec_gym.envs.sandbox import Sandbox, make_sandbox
from obsspec_gym.envs.scene import judge
from obsspec_gym.envs.tasks.task import Task

SECRET = f"hunter{secrets.token_hex(8)}"


@pytest.fixture(scope="module", autouse=True)
def our_environment() -> Iterator[None]:
    """A secret in our environment, there before any sandbox is started."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OBSSPEC_TEST_SECRET", SECRET)
        yield


@pytest.fixture
def contained(sandbox: Sandbox, sandbox_kind: str) -> Sandbox:
    if sandbox_kind == "local":
        pytest.skip("a local sandbox isolates nothing")
    return sandbox


@pytest.fixture
def neighbour(contained: Sandbox, sandbox_kind: str) -> Iterator[Sandbox]:
    """Another sandbox of the same kind."""
    other = make_sandbox(sandbox_kind)
    other.start()
    yield other
    other.close()


def text(sandbox: Sandbox, command: str, timeout: float = 30.0) -> str:
    return sandbox.run(command, timeout).output.decode("utf-8", "replace")


def test_our_environment(sandbox: Sandbox) -> None:
    assert sandbox.run("env").exit_code == 0
    assert SECRET not in text(sandbox, "env; export -p; declare -p")


def test_our_environment_through_other_processes(contained: Sandbox) -> None:
    assert SECRET not in text(contained, "cat /proc/*/environ /proc/*/task/*/environ 2>/dev/null | tr '\\0' '\\n'")


def test_the_network(contained: Sandbox) -> None:
    assert text(contained, "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '") == "lo\n"
    assert text(contained, "tail -n +2 /proc/net/route") == ""
    assert "unreachable" in text(contained, "exec 3<>/dev/udp/192.0.2.1/53")
    assert "unreachable" in text(contained, "exec 3<>/dev/tcp/192.0.2.1/80")


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6], ids=["IPv4", "IPv6"])
def test_the_loopback_of_this_machine(contained: Sandbox, family: socket.AddressFamily) -> None:
    host = "127.0.0.1" if family == socket.AF_INET else "::1"
    try:
        server = socket.create_server((host, 0), family=family)
    except OSError as error:
        pytest.skip(str(error))
    with server:
        port = server.getsockname()[1]
        assert contained.run(f"exec 3<>/dev/tcp/{host}/{port}").exit_code == 1
        server.settimeout(0.2)
        with pytest.raises(TimeoutError):
            server.accept()


def test_sockets_of_this_machine(contained: Sandbox, tmp_path: Path) -> None:
    """By a path, and abstract ones, which belong to network namespaces and not to the file system."""
    with socket.socket(socket.AF_UNIX) as named, socket.socket(socket.AF_UNIX) as abstract:
        named.bind(str(tmp_path / "s"))
        name = f"obsspec-{SECRET}"
        abstract.bind(f"\0{name}")
        for server in (named, abstract):
            server.listen()
        assert text(contained, "tail -n +2 /proc/net/unix | grep -c obsspec") == "0\n"
        connect = "import socket, sys; socket.socket(socket.AF_UNIX).connect({})"
        if contained.run("command -v python3").exit_code == 0:
            assert contained.run(f'python3 -c "{connect.format(repr(str(tmp_path / "s")))}"').exit_code == 1
            assert contained.run(f'python3 -c "{connect.format("chr(0) + " + repr(name))}"').exit_code == 1


def test_files_of_this_machine(contained: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(SECRET)
    tmp_path.chmod(0o755)
    (tmp_path / "file").chmod(0o644)
    for path in (tmp_path / "file", Path(__file__), Path(sys.prefix) / "pyvenv.cfg"):
        assert contained.run(f"cat '{path}' /proc/1/root/'{path}' /proc/self/root/'{path}'").exit_code == 1
    assert text(contained, f"grep -rsl {SECRET} /tmp /home /root /var /run /mnt /srv /opt /etc") == ""


def test_this_package(contained: Sandbox) -> None:
    """The answers of generated tasks are functions of their index, in it: nothing of it is there for any Python."""
    assert text(contained, "find / -path /proc -prune -o -path '*/obsspec_gym/*.py' -print 2>/dev/null", 60.0) == ""
    for python in ("python3", "/usr/bin/python3", "/usr/local/bin/python3"):
        assert contained.run(f"{python} -c 'import obsspec_gym.seeding'", 60.0).exit_code in (1, 127)


def test_mounts_and_devices_of_this_machine(contained: Sandbox) -> None:
    devices = text(contained, "ls /dev").split()
    assert not [name for name in devices if name.startswith(("sd", "vd", "nvme", "mem", "kmem", "kvm", "loop", "fuse"))]
    for command in ("mount -t tmpfs x /tmp", "mknod x b 8 0 && cat x", "chroot / true", "unshare -m true"):
        assert contained.run(f"{command} 2>&1").exit_code != 0
    for path in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/sys/fs/cgroup/cgroup.procs"):
        assert contained.run(f"echo 1 >{path}").exit_code != 0


def test_processes_of_this_machine(contained: Sandbox) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        for pid in (os.getpid(), process.pid):
            command = f"grep -qs {'pytest' if pid == os.getpid() else 'sleep'} /proc/{pid}/cmdline"
            assert contained.run(command).exit_code != 0
        contained.run(f"kill -9 {process.pid} -1; kill -9 -- -{process.pid}")
        assert process.poll() is None
        process.kill()


def test_other_sandboxes(contained: Sandbox, neighbour: Sandbox) -> None:
    token = f"54321.{secrets.randbelow(10**6)}"
    neighbour.run(f"echo {SECRET} | tee ~/x /tmp/x /dev/shm/x >/dev/null; sleep {token} & mkfifo /tmp/p")
    assert text(contained, f"grep -rsl {SECRET} /tmp /home /dev/shm; ls /tmp/p 2>/dev/null") == ""
    assert (
        text(contained, f"cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep {token[:-1]}[{token[-1]}]'") == "0\n"
    )
    contained.run("kill -9 -1; rm -rf /tmp/* ~/* /dev/shm/*")
    assert text(neighbour, "cat ~/x; jobs | wc -l") == f"{SECRET}\n1\n"


def test_shared_memory_of_other_sandboxes(contained: Sandbox, neighbour: Sandbox) -> None:
    if neighbour.run("command -v ipcmk ipcs").exit_code != 0:
        pytest.skip("no ipcmk here")
    neighbour.run("ipcmk -M 4096 -S 1 -Q")
    assert text(neighbour, "ipcs | grep -c 0x") == "3\n"
    assert text(contained, "ipcs | grep -c 0x") == "0\n"


LOOK = r"""
import glob, os, shutil, time
while True:
    for path in glob.glob("/verifier*") + glob.glob("../verifier*") + glob.glob("/proc/[0-9]*/root/verifier*"):
        shutil.copytree(path, f"stolen{time.time()}", dirs_exist_ok=True)
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            if b"ANSWER=" in (data := open(path, "rb").read()):
                open("stolen", "wb").write(data)
        except OSError:
            pass
"""


def test_the_verifier(contained: Sandbox) -> None:
    """Before it runs there is nothing of it, while it runs nothing of the agent, and afterwards nothing again."""
    contained.run(f"cat >look.py <<'END'\n{LOOK}\nEND\n(setsid nohup python3 look.py >/dev/null 2>&1 &); sleep 0.2")
    search = f"grep -rsl {SECRET} / --exclude-dir=proc --exclude-dir=sys --exclude-dir=usr; ls -d ~/stolen*"
    assert text(contained, f"{search} 2>/dev/null", 60.0) == ""
    during = contained.verify(
        'sleep 0.3; cat "$VERIFIER/secret"; grep -l look.py /proc/[0-9]*/cmdline; ls -d ~/stolen* 2>/dev/null; true',
        {"secret": SECRET},
        {"ANSWER": SECRET},
    )
    assert during.output.decode() == SECRET
    assert text(contained, f"{search} 2>/dev/null", 60.0) == ""


# Never for a local sandbox: some of these would be done to the machine.
SABOTAGE: dict[str, str] = {
    "programs": "mkdir bin; for p in bash sh test grep cat false; do ln -s /bin/true bin/$p; done; PATH=~/bin:$PATH",
    "functions": "test() { :; }; exit() { builtin exit 0; }; false() { :; }; export -f test exit; alias false=true",
    "startup files": "for f in .bashrc .profile .bash_profile .bash_login; do echo 'exit 0' >~/$f; done",
    "variables": "export BASH_ENV=~/x ENV=~/x LD_PRELOAD=~/x.so PYTHONSTARTUP=~/x IFS=0 SHELLOPTS; echo 'exit 0' >~/x",
    "traps": "trap 'exit 0' EXIT DEBUG ERR INT TERM; set -n; PROMPT_COMMAND='exit 0'; PS1='$(exit 0)'",
    "background": "(setsid bash -c 'while :; do for f in /proc/[0-9]*/fd/*; do echo 0 >$f; done; done' &) &>/dev/null",
    "descriptors": r"for f in {3..255}; do printf '\0r%s\0000\0h\0/\n\0\n' {1..50} >&$f; done 2>/dev/null",
    "script": r"printf '\\builtin exit 0\n' | tee /proc/$$/fd/* >/dev/null 2>&1",
    "limits": "ulimit -n 20; ulimit -f 0; ulimit -t 1; umask 777; cd /",
    "the end": "exec true",
    "directory": "cd /tmp; rm -rf ~/* ~; chmod 000 ~ /tmp",
    "results": "for d in ~ /tmp /verifier ../verifier /logs; do mkdir -p $d; echo 1 >$d/reward.txt; done 2>/dev/null",
}


@pytest.mark.parametrize("name", SABOTAGE)
def test_the_reward(name: str, neighbour: Sandbox) -> None:
    """It depends on the verifier alone, whatever the agent left."""
    task = Task("t/0", "Say it.", verifier='test "$ANSWER" = right || exit 1')
    neighbour.run(SABOTAGE[name], 3.0)
    assert judge(neighbour, task, "wrong").reward == 0.0
    assert judge(neighbour, task, "right").reward == 1.0


def test_control_streams_by_name(sandbox: Sandbox) -> None:
    """No program can open what the shell is driven by: those are sockets, and the output is the agent's own."""
    opened = text(
        sandbox,
        "for f in /proc/$$/fd/*; do case $(readlink $f) in socket:*)"
        " bash -c ': <$0' $f 2>/dev/null && echo read; bash -c ': >$0' $f 2>/dev/null && echo written;; esac; done",
    )
    assert opened == ""


def test_control_streams_of_the_supervisor(contained: Sandbox) -> None:
    """None but the shell's own three reach it, and no descriptor of ours leads anywhere else."""
    links = "for p in /proc/[0-9]*; do readlink $p/fd/* 2>/dev/null; done | sort -u"
    found = [line for line in text(contained, links).splitlines() if not line.startswith("/proc/")]
    assert "/dev/null" in found
    assert [line for line in found if not line.startswith(("socket:", "pipe:", "/dev/", "anon_inode:"))] == []
    assert len([line for line in found if line.startswith("socket:")]) <= 2, found


def test_the_next_report_cannot_be_forged(sandbox: Sandbox) -> None:
    """A subshell that keeps the status stream cannot know what the next command's report will be called."""
    forge = r"while :; do printf '\0r%s\00042\0h\0/forged\n\0\n' {1..200}; sleep 0.01; done"
    sandbox.run(f"for f in {{10..20}}; do ({forge}) >&$f 2>/dev/null & done; sleep 0.1", 5.0)
    result = sandbox.run("sleep 0.1; (exit 3)", 5.0)
    assert result.exit_code != 42
    assert result.cwd == sandbox.workdir
