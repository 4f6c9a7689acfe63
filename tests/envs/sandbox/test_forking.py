"""A fork has its origin's files and directory; nothing that happens in one afterwards shows in the other."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from obsspec_gym.envs.sandbox import Sandbox, forking
from obsspec_gym.envs.sandbox.docker import DockerSandbox
from obsspec_gym.envs.sandbox.forking import moved
from obsspec_gym.errors import ClosedError, SandboxError

pytestmark = pytest.mark.filterwarnings("ignore::obsspec_gym.envs.sandbox.local.NoIsolationWarning")

# Everything about a tree that a fork keeps: kind, permissions, owner, links, time, size, target, content.
LISTING = r"""
python3 - <<'END'
import hashlib, os
home, inodes = os.path.expanduser("~").encode(), {}
for base, directories, files in os.walk(home):
    directories.sort()
    for name in [b"."] + sorted(directories + files):
        path = os.path.join(base, name)
        try:
            at = os.lstat(path)
            number = inodes.setdefault(at.st_ino, len(inodes))
            target = os.readlink(path) if os.path.islink(path) else b""
            plain = os.path.isfile(path) and not os.path.islink(path)
            content = hashlib.md5(open(path, "rb").read()).hexdigest() if plain else ""
            print(os.path.relpath(path, home), oct(at.st_mode), at.st_uid, number, at.st_nlink if plain else 0,
                  at.st_mtime_ns, at.st_size if plain else 0, target, content)
        except PermissionError:
            print(os.path.relpath(path, home), "forbidden")
END
"""
UNLOCK = "chmod -R u+rwX ~"


def listing(sandbox: Sandbox) -> str:
    result = sandbox.run(LISTING, 60.0)
    assert result.exit_code == 0, result.output
    assert result.output_bytes == len(result.output)
    return result.output.decode()


@pytest.fixture
def fork(sandbox: Sandbox) -> Iterator[Sandbox]:
    """A fork of a sandbox with something of every kind in it."""
    made = sandbox.run(
        r"""
        umask 022; mkdir -p src/deep 'a b' closed open; echo 1 >src/one; ln src/one src/deep/same; ln -s one src/link
        ln -s nowhere dangling; ln -s / root; mkfifo fifo; echo '#!/bin/sh' >run; chmod 4755 run; chmod 1777 open
        echo secret >closed/secret; chmod 0 closed/secret closed; printf x >$'odd\n\xff "\'name'; printf y >-n
        touch -h -d '2001-02-03 04:05:06.123456789' src/one src/link src; : >empty; truncate -s 50M hole; cd src/deep
        v=1; export w=2; f() { :; }; sleep 1000 & exec 7>held"""
    )
    assert made.exit_code == 0, made.output
    with closing(sandbox.fork()) as twin:
        yield twin
    sandbox.run(f"{UNLOCK}; rm -rf ~/* ~/.[!.]*")


def test_a_fork_has_the_files(fork: Sandbox, sandbox: Sandbox) -> None:
    assert listing(fork) == listing(sandbox)
    assert listing(fork).count("\n") >= 20
    for each in (fork, sandbox):
        assert each.run(UNLOCK).exit_code == 0
    assert listing(fork) == listing(sandbox)
    assert "secret" in listing(fork)
    # Holes stay holes: nothing near 50 MiB is taken.
    assert int(fork.run("cd; stat -c %b hole").output) < 1000


def test_a_fork_has_the_directory_and_a_new_shell(fork: Sandbox, sandbox: Sandbox) -> None:
    there = fork.run('pwd; echo "[$v$w]"; type -t f; jobs; ls /proc/self/fd | wc -w', 20.0)
    assert there.output.decode() == f"{fork.workdir}/src/deep\n[]\n5\n"
    assert not there.restarted
    assert sandbox.run('pwd; echo "[$v$w]"').output.decode() == f"{sandbox.workdir}/src/deep\n[12]\n"


def test_neither_sees_what_the_other_does(fork: Sandbox, sandbox: Sandbox) -> None:
    before = listing(sandbox)
    assert fork.run("cd; echo 2 >>src/one; rm -r 'a b'; echo new >new; chmod 700 src; mv run ran").exit_code == 0
    assert listing(sandbox) == before
    after = listing(fork)
    assert sandbox.run("cd; rm -rf src open; echo 3 >three; kill %1").exit_code == 0
    assert listing(fork) == after
    assert fork.run("cat ~/src/deep/same").output == b"1\n2\n"


def test_each_goes_on_when_the_other_is_closed(sandbox: Sandbox) -> None:
    sandbox.run("echo a >f")
    first = sandbox.fork()
    second = first.fork()
    first.run("echo b >f")
    first.close()
    assert (second.run("cat f").output, sandbox.run("cat f").output) == (b"a\n", b"a\n")
    second.close()
    assert sandbox.run("cat f").output == b"a\n"


def test_tmp_is_forked_where_it_is_the_sandboxs_own(own_sandbox: Sandbox) -> None:
    name = f"/tmp/obsspec-test-{os.getpid()}"
    own_sandbox.run(f"echo a >{name}")
    with closing(own_sandbox.fork()) as twin:
        assert twin.run(f"cat {name}; stat -c %a /tmp").output == b"a\n1777\n"
    own_sandbox.run(f"rm {name}")


names = st.binary(min_size=1, max_size=12).filter(lambda name: b"\0" not in name and b"/" not in name)
names = names.filter(lambda name: name not in (b".", b".."))
modes = st.integers(0, 0o7777)
entries = st.one_of(
    st.tuples(st.just("file"), st.binary(max_size=40), modes),
    st.tuples(st.just("directory"), st.just(b""), modes),
    st.tuples(st.just("link"), names, st.just(0)),
    st.tuples(st.just("hole"), st.just(b""), modes),
)
trees = st.dictionaries(names, st.tuples(entries, st.dictionaries(names, entries, max_size=3)), max_size=4)


def builder(tree: dict[bytes, tuple[tuple[str, bytes, int], dict[bytes, tuple[str, bytes, int]]]]) -> str:
    """A command that makes a tree; permissions are set last, for they may forbid the rest."""
    lines = ["import os", "modes = []", "def make(kind, path, data, mode):"]
    lines += ["    if kind == 'link':", "        return os.symlink(data, path)"]
    lines += ["    modes.append((path, mode))", "    if kind == 'directory':", "        return os.mkdir(path)"]
    lines += ["    with open(path, 'wb') as file:", "        file.write(data)"]
    lines += ["        if kind == 'hole':", "            file.truncate(30_000_000)"]
    for name, ((kind, data, mode), below) in tree.items():
        lines.append(f"make({kind!r}, {name!r}, {data!r}, {mode})")
        if kind == "directory":
            for inner, (inner_kind, inner_data, inner_mode) in below.items():
                lines.append(f"make({inner_kind!r}, {name + b'/' + inner!r}, {inner_data!r}, {inner_mode})")
    lines.append("for number, (path, mode) in enumerate(reversed(modes)):")
    lines.append("    os.utime(path, ns=(0, 10**18 + number * 1_000_001), follow_symlinks=False); os.chmod(path, mode)")
    return f"umask 0; python3 -c {shlex.quote(chr(10).join(lines))}"


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=trees)
def test_every_tree_is_copied(
    tree: dict[bytes, tuple[tuple[str, bytes, int], dict[bytes, tuple[str, bytes, int]]]], shared_sandbox: Sandbox
) -> None:
    sandbox = shared_sandbox
    sandbox.run(f"cd; {UNLOCK}; rm -rf ./.[!.]* ./..?* ./*; exit")
    made = sandbox.run(builder(tree))
    assert made.exit_code == 0, made.output
    before = listing(sandbox)
    with closing(sandbox.fork()) as twin:
        assert listing(twin) == before
        twin.run(UNLOCK)
        unlocked = listing(twin)
        twin.run("cd; rm -rf ./.[!.]* ./..?* ./*")
        assert listing(sandbox) == before
        sandbox.run(UNLOCK)
        assert listing(sandbox) == unlocked


def test_what_changes_while_it_is_read_is_no_error(own_sandbox: Sandbox) -> None:
    own_sandbox.run("for i in {1..300}; do head -c 20000 /dev/zero >f$i; done")
    own_sandbox.run("(while :; do for i in {1..300}; do echo . >>f$i; rm -f g; echo >g; done; done) &")
    for _ in range(2):
        with closing(own_sandbox.fork()) as twin:
            assert twin.run("ls f* | wc -l").output == b"300\n"
    assert own_sandbox.run("kill %1").exit_code == 0


def test_a_command_under_way_is_stopped(own_sandbox: Sandbox) -> None:
    stream = own_sandbox.stream("v=1; echo a >f; echo made; sleep 1000")
    assert next(stream) == "made\n"
    with closing(own_sandbox.fork()) as twin:
        assert twin.run("cat f").output == b"a\n"
    assert stream.result.timed_out
    assert own_sandbox.run("echo $v").output == b"1\n"


def test_a_closed_sandbox_has_no_forks(own_sandbox: Sandbox) -> None:
    own_sandbox.close()
    with pytest.raises(ClosedError):
        own_sandbox.fork()


@pytest.mark.parametrize("broken", ["_PACK", "_UNPACK"])
def test_a_copy_that_fails_says_why_and_leaves_the_origin(
    broken: str, own_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if isinstance(own_sandbox, DockerSandbox):
        pytest.skip("copies by other means")
    own_sandbox.run("head -c 3000000 /dev/urandom >f")
    before = len(os.listdir("/proc/self/fd"))
    text = getattr(forking, broken).replace("tar ", "tar --no-such-option ")
    with monkeypatch.context() as patch:
        patch.setattr(forking, broken, text)
        with pytest.raises(SandboxError, match=r"could not be .*: .*no-such-option"):
            own_sandbox.fork()
    assert len(os.listdir("/proc/self/fd")) == before
    assert list(tmp_path.iterdir()) == []
    with closing(own_sandbox.fork()) as twin:
        assert twin.run("wc -c <f").output == b"3000000\n"


def test_an_interrupted_fork_leaves_the_origin(own_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    if isinstance(own_sandbox, DockerSandbox):
        pytest.skip("copies by other means")
    own_sandbox.run("head -c 3000000 /dev/urandom >f; v=1")
    before = len(os.listdir("/proc/self/fd"))

    def interrupt(fd: int, data: bytes) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(forking, "_write", interrupt)
        with pytest.raises(KeyboardInterrupt):
            own_sandbox.fork()
    assert len(os.listdir("/proc/self/fd")) == before
    assert own_sandbox.run("echo $v; md5sum <f").output.startswith(b"1\n")
    # The supervisor's next answer is not what was left of the archive.
    assert own_sandbox.run("exit 3").exit_code == 3
    own_sandbox.write({"x": "y"})
    with closing(own_sandbox.fork()) as twin:
        assert twin.run("cat x; wc -c <f").output == b"y3000000\n"


@pytest.mark.parametrize(
    ("cwd", "expected"),
    [("/a/home", "/b/home"), ("/a/home/x y", "/b/home/x y"), ("/", "/"), ("/a/homes", "/a/homes"), ("/a", "/a")],
)
def test_directories_move_with_the_home(cwd: str, expected: str) -> None:
    assert moved(cwd, "/a/home", "/b/home") == expected
    assert moved(cwd, "/a/home", "/a/home") == cwd
