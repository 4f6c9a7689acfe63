"""A sandbox whose whole file system is an image: what can be changed, by whom, how much, and what is out of reach."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from obsspec_gym.envs.images import image_tree
from obsspec_gym.envs.sandbox import make_sandbox
from obsspec_gym.envs.sandbox.bubblewrap import BubblewrapSandbox, bubblewrap_available
from obsspec_gym.envs.sandbox.image_root import ImageRoot
from obsspec_gym.errors import InvalidArgumentError, SandboxError, SandboxUnavailableError

Start = Callable[..., BubblewrapSandbox]


@pytest.fixture(scope="module")
def tree() -> Path:
    if reason := bubblewrap_available():
        pytest.skip(reason)
    try:
        return image_tree()
    except SandboxUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture
def start(tree: Path) -> Iterator[Start]:
    started: list[BubblewrapSandbox] = []

    def begin(**options: object) -> BubblewrapSandbox:
        sandbox = make_sandbox("bubblewrap", root=tree, **options)
        assert isinstance(sandbox, BubblewrapSandbox)
        started.append(sandbox)
        sandbox.start()
        return sandbox

    yield begin
    for sandbox in started:
        sandbox.close()


def said(sandbox: BubblewrapSandbox, command: str) -> str:
    result = sandbox.run(command)
    assert not result.restarted
    return result.output.decode().rstrip("\n")


def test_the_agent_finds_the_image_and_itself_in_it(start: Start):
    sandbox = start()
    assert said(sandbox, "id -un; id -u; pwd; echo $HOME; hostname") == "agent\n1000\n/home/agent\n/home/agent\nsandbox"
    assert (sandbox.workdir, sandbox.home) == ("/home/agent", "/home/agent")
    assert said(sandbox, "cat /etc/debian_version | wc -l; command -v git python3 gcc make pytest | wc -l") == "1\n5"


def test_a_script_as_root_makes_the_machine_that_the_agent_then_finds(start: Start):
    sandbox = start(user="user", workdir="/app", env={"COLOUR": "red"})
    build = """
        set -e
        [ "$(id -u):$USER:$HOME:$PWD:$COLOUR" = 0:root:/root:/srv:blue ]
        mkdir -p /app /home/user /data && cp "$BUILD/sub/input" /data/input && chmod 600 /data/input
        echo user:x:1001:1001::/home/user:/bin/bash >>/etc/passwd
        echo setting=1 >/etc/app.conf
        rm /usr/bin/jq
        sleep 1000 &
        touch /srv/made
    """
    result = sandbox.provision(build, {"sub/input": "text\n"}, {"COLOUR": "blue"}, cwd="/srv")
    assert (result.exit_code, result.output) == (0, b"")
    assert said(sandbox, "id -un; id -u; pwd; echo $HOME $USER $COLOUR") == "user\n1001\n/app\n/home/user user red"
    assert (sandbox.workdir, sandbox.home) == ("/app", "/home/user")
    assert said(sandbox, "cat /data/input /etc/app.conf; ls /srv; command -v jq") == "text\nsetting=1\nmade"
    assert (
        said(sandbox, "pgrep -c sleep; find / -xdev -name input -not -path '/proc/*' 2>/dev/null") == "0\n/data/input"
    )


def test_a_failing_script_is_a_result_and_more_can_follow(start: Start):
    sandbox = start()
    assert sandbox.provision("echo why; exit 3").exit_code == 3
    assert sandbox.provision("sleep 100", timeout=0.5).timed_out
    assert sandbox.provision("echo again >/etc/again").exit_code == 0
    assert said(sandbox, "cat /etc/again") == "again"


def test_nothing_reaches_the_tree_or_another_sandbox(start: Start, tree: Path):
    before = sorted((tree / "etc").iterdir())
    one, two = start(user="root"), start(user="root")
    assert (
        one.run("echo mine >/etc/mine; echo changed >/etc/hostname; rm -rf /usr/lib/git-core /usr/bin/env").exit_code
        == 0
    )
    assert said(two, "ls /etc/mine 2>&1; cat /etc/hostname; ls /usr/lib/git-core | head -1; ls /usr/bin/env").endswith(
        "sandbox\ngit\n/usr/bin/env"
    )
    assert sorted((tree / "etc").iterdir()) == before
    assert (tree / "etc/hostname").read_text() == "sandbox\n"


def test_who_is_not_root_cannot_change_the_system_but_everything_else(start: Start):
    sandbox = start(workdir="/work/place")
    refused = (
        "for d in / /etc /usr /usr/bin /usr/local/lib /bin /lib /root; do touch $d/new 2>/dev/null && echo $d; done"
    )
    assert said(sandbox, refused) == ""
    assert said(sandbox, "mv /usr/bin/python3 /tmp 2>&1; ln -sfn /tmp /bin 2>&1; ls -A /root 2>&1").count("\n") == 2
    allowed = "for d in . ~ /tmp /var/tmp /opt /srv /var/log /work; do touch $d/new && echo ok; done | uniq -c | xargs"
    assert said(sandbox, allowed) == "8 ok"


def test_root_can_change_everything_but_its_own_cage(start: Start):
    sandbox = start(user="root", workdir="/root")
    assert said(sandbox, "id -un; pwd; touch /new /etc/new /usr/bin/new && echo ok") == "root\n/root\nok"
    assert said(sandbox, "grep -c '^Cap\\(Prm\\|Eff\\|Bnd\\).*:.0000000000000000' /proc/self/status") == "3"
    out_of_reach = (
        "umount /proc; mount -t tmpfs x /mnt; unshare -r true; chroot / true; rmdir /proc /dev; mknod /x b 1 1; "
        "echo 1 >/proc/sys/kernel/pid_max"
    )
    for command in out_of_reach.split("; "):
        assert sandbox.run(f"({command}) 2>/dev/null").exit_code != 0, command
    assert (
        said(
            sandbox,
            "ls -d /supervisor /verifier /image /layer /lower /.obsspec 2>/dev/null; ps -e --no-headers | wc -l",
        )
        == "4"
    )


@pytest.mark.parametrize("user", ["agent", "root"])
def test_the_verifier_runs_as_root_with_files_nobody_else_sees(start: Start, user: str):
    sandbox = start(user=user, workdir="/app")
    sandbox.write({"answer": "42\n", "bin/tool": "#!/bin/sh\necho tool\n"})
    assert (
        said(sandbox, "bin/tool; (while :; do ls /dev/obsspec/*/files/* && touch /app/seen; done) 2>/dev/null >&2 &")
        == "tool"
    )
    script = 'id -u; echo $USER; pwd; cat "$VERIFIER/expected" answer; echo 1 >/reward; pgrep -fc while; ls /app'
    result = sandbox.verify(script, {"expected": "6*7\n"}, {})
    assert result.output.decode().split("\n")[:-1] == ["0", "root", "/app", "6*7", "42", "0", "answer", "bin"]
    after = sandbox.run("ls -d /dev/obsspec 2>&1; cat /reward; find / -name expected 2>/dev/null")
    assert after.restarted
    assert after.output == b"ls: cannot access '/dev/obsspec': No such file or directory\n1\n"


def test_a_link_in_the_way_of_the_verifier_leads_nowhere(start: Start):
    sandbox = start(user="root")
    sandbox.run("ln -s /etc /.obsspec; ln -s /etc /dev/obsspec; rm -rf /dev/shm; mkdir /tmp/mine")
    assert sandbox.verify('cat "$VERIFIER/it"; ls -la /etc/files', {"it": "here\n"}, {}).output.startswith(
        b"here\nls: "
    )
    sandbox.run("cd /; rm -rf /root; ln -s /supervisor /root")
    with pytest.raises(SandboxError, match="leads through a link"):
        sandbox.write({"x": "y"})
    assert sandbox.run("echo on").output == b"on\n"


def test_a_verifier_finds_programs_as_built_and_everything_else_as_left(start: Start):
    sandbox = start(user="root", workdir="/app")
    build = "echo tool >/usr/local/bin/tool; echo built >/etc/setting; mkdir /data /gone /kind; rm /usr/bin/jq"
    assert sandbox.provision(f"{build}; echo one >/data/one").exit_code == 0
    sandbox.run("echo forged >/usr/local/bin/tool; echo forged >/etc/setting; cp /bin/true /usr/bin/jq; rm -r /gone")
    sandbox.run("echo two >/data/two; rm /data/one; mkdir /new; echo n >/new/n; echo f >/file; ln -s /data /link")
    sandbox.run("rm -r /kind; ln -s /etc /kind; echo mine >mine; rm -rf /srv; ln -s /usr /srv; mkfifo /pipe")
    script = """
        cat /usr/local/bin/tool /etc/setting; command -v jq; ls -d /gone 2>/dev/null; ls /data /link; cat /new/n /file
        readlink /kind /srv; cat mine; cat "$VERIFIER/key"; touch /usr/bin/made /made /new/made; ls -d /pipe 2>/dev/null
    """
    expected = ["tool", "built", "two", "two", "n", "f", "/etc", "/usr", "mine", "key"]
    for _ in range(2):
        result = sandbox.verify(script, {"key": "key\n"}, {}, as_built=True)
        assert [line for line in result.output.decode().split() if not line.endswith(":")] == expected
    left = "forged forged /usr/bin/jq /link n f"
    as_left = (
        "cat /usr/local/bin/tool /etc/setting; command -v jq; ls -d /gone /link /made /usr/bin/made; cat /new/n /file"
    )
    assert sandbox.verify(f"{as_left} 2>/dev/null", {}, {}).output.decode().split()[:3] == left.split()[:3]
    assert sandbox.run(f"({as_left}) 2>/dev/null; ls /new").output.decode().split() == [*left.split(), "made", "n"]
    fork = sandbox.fork()
    try:
        assert [line for line in fork.verify(script, {"key": "key\n"}, {}, as_built=True).output.decode().split()
                if not line.endswith(":")] == expected  # fmt: skip
        fork.run("echo anew >/etc/setting")
        assert said(sandbox, "cat /etc/setting") == "forged"
    finally:
        fork.close()


def test_an_agent_that_is_not_root_cannot_replace_what_a_verifier_runs(start: Start):
    sandbox = start(workdir="/app")
    sandbox.run(
        "for p in /usr/bin/{python3,python3.*,bash,env,test} /etc/ld.so.preload /usr/lib/python3*/sitecustomize.py; do "
        "rm -f $p; ln -s /bin/true $p; echo /app/x >$p; done; rm /bin; mv /usr /gone; ln -sfn /app /lib",
    )
    assert sandbox.verify("python3 -c 'raise SystemExit(7)'; exit $?", {}, {}).exit_code == 7


def test_a_machine_that_no_agent_has_used_is_as_built(start: Start):
    sandbox = start(user="root")
    sandbox.provision("echo built >/etc/setting")
    for _ in range(2):
        assert sandbox.verify("cat /etc/setting", {}, {}, as_built=True).output == b"built\n"
        sandbox.run("echo forged >/etc/setting")
    assert sandbox.verify("cat /etc/setting", {}, {}).output == b"forged\n"


@pytest.mark.parametrize("as_built", [False, True])
def test_a_machine_without_room_does_not_keep_verifiers_from_judging(start: Start, as_built: bool):
    sandbox = start(user="root", disk_mib=8)
    fill = "cd /tmp; cat /dev/zero >big 2>/dev/null; for ((i = 0; i < 20000; i++)); do : >$i || break; done 2>/dev/null"
    sandbox.run(f"{fill}; cat /dev/zero >/dev/shm/big 2>/dev/null; rm -rf /.obsspec /dev/obsspec", 120.0)
    assert sandbox.run("mkdir /one 2>/dev/null").exit_code == 1
    key = secrets.token_bytes(200_000)  # that nothing compresses
    result = sandbox.verify('sha256sum <"$VERIFIER/key"', {"key": key}, {}, as_built=as_built)
    assert result.output.decode().split()[0] == hashlib.sha256(key).hexdigest()


def test_a_verifier_finds_the_images_environment_but_not_its_shell(start: Start):
    sandbox = start(
        user="root", workdir="/app", env={"PATH": "/app/bin:/usr/bin", "COLOUR": "it's red", "HOME": "/app"}
    )
    sandbox.run("mkdir bin; for p in bash env sh; do printf '#!/bin/true\\n' >bin/$p; chmod +x bin/$p; done")
    sandbox.run("printf '#!/usr/bin/bash\\necho mine\\n' >bin/tool; chmod +x bin/tool")
    result = sandbox.verify('tool; echo "$COLOUR $HOME"; exit 7', {}, {"COLOUR": "blue"})
    assert (result.output, result.exit_code) == (b"mine\nblue /app\n", 7)
    assert sandbox.verify('echo "$COLOUR $VERIFIER"', {}, {}).output.startswith(b"it's red /dev/obsspec/")


def test_what_is_written_is_bounded_in_size_and_number(start: Start):
    sandbox = start(disk_mib=8, user="root")
    full = sandbox.run("cat /dev/zero >/big; cat /dev/zero >/tmp/big; ls -s --block-size=1 /big | cut -d' ' -f1")
    assert b"No space left on device" in full.output
    assert int(full.output.split()[-1]) <= 8 * 2**20
    assert sandbox.run("rm /big /tmp/big && echo some >/some").exit_code == 0
    many = sandbox.run(
        "mkdir /many; cd /many; for ((i = 0; i < 20000; i++)); do : >$i || break; done; ls | wc -l; rm -rf /many"
    )
    assert b"No space left on device" in many.output
    assert 7_000 < int(many.output.split()[-1]) <= 8 * 1024
    assert said(sandbox, "cd; cat /some") == "some"


def test_a_fork_has_what_was_changed_and_what_was_removed(start: Start):
    sandbox = start(user="root")
    sandbox.provision(
        "rm -r /usr/share/perl5 /etc/motd; rm -r /usr/lib/git-core; mkdir /usr/lib/git-core; echo p >/etc/p"
    )
    sandbox.run("mkdir /w; cd /w; echo one >a; chmod 000 a; ln -s a b; mkfifo f")
    fork = sandbox.fork()
    try:
        removed = "ls /usr/share/perl5 /etc/motd 2>&1 | wc -l; ls -A /usr/lib/git-core | wc -l"
        look = f"pwd; {removed}; cat /etc/p; ls -l | tail -n +2 | cut -c1-10 | xargs"
        assert said(fork, look) == said(sandbox, look) == "/w\n2\n0\np\n---------- lrwxrwxrwx prw-r--r--"
        fork.run("rm -f a; echo two >c; touch /usr/lib/git-core/x")
        assert said(sandbox, "ls; ls /usr/lib/git-core") == "a\nb\nf"
        assert said(fork, "ls; ls /usr/lib/git-core") == "b\nc\nf\nx"
    finally:
        fork.close()


def test_who_is_not_in_the_image_is_named(start: Start):
    sandbox = start(user="nobody-here")
    with pytest.raises(SandboxError, match="no user 'nobody-here'"):
        sandbox.run("true")
    assert sandbox.provision("echo nobody-here:x:7:7::/tmp:/bin/bash >>/etc/passwd").exit_code == 0
    assert said(sandbox, "id -u; id -g; pwd") == "7\n7\n/tmp"


@pytest.mark.parametrize(
    ("user", "expected"),
    [("1000", (1000, 1000)), ("agent:0", (1000, 0)), ("agent:root", (1000, 0)), ("77", (77, 77)), ("77:88", (77, 88))],
)
def test_a_user_is_a_name_or_a_number_with_a_group_or_without(user: str, expected: tuple[int, int]):
    printed = "root:x:0:0:root:/root:/bin/bash\nagent:x:1000:1000:agent:/home/agent:/bin/bash\n--\nroot:x:0:\n"
    assert ImageRoot(Path("/"), "root", None, 1).account("").home == "/root"
    account = ImageRoot(Path("/"), user, None, 1).account(printed)
    assert (account.uid, account.gid) == expected


def test_bad_arguments(tmp_path: Path):
    for user in ("", "a b", "-x", "a:b:c", "$(id)"):
        with pytest.raises(InvalidArgumentError, match="user must be"):
            BubblewrapSandbox(root=tmp_path, user=user)
    for workdir in ("app", "/app/../etc", "/app/", ""):
        with pytest.raises(InvalidArgumentError, match="workdir must be"):
            BubblewrapSandbox(root=tmp_path, workdir=workdir)
    with pytest.raises(InvalidArgumentError, match="give root"):
        BubblewrapSandbox(user="root")
    with pytest.raises(InvalidArgumentError, match="give root"):
        BubblewrapSandbox().provision("true")


def test_a_tree_that_cannot_be_a_root_is_refused_with_the_reason(tmp_path: Path):
    if reason := bubblewrap_available():
        pytest.skip(reason)
    with pytest.raises(SandboxUnavailableError, match="is no image"):
        BubblewrapSandbox(root=tmp_path).start()
    for name in ("bin/bash", "usr/bin/env"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    root = ImageRoot(tmp_path, "agent", None, 1)
    with pytest.raises(SandboxUnavailableError, match="chown -R 123456789"):
        root.check(123456789)
    tmp_path.parent.chmod(0o700)
    with pytest.raises(SandboxUnavailableError, match=r"chmod o\+x|chown"):
        BubblewrapSandbox(root=tmp_path).start()
