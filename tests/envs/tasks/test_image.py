"""Dockerfiles interpreted: what is refused, with its line, and what the build script really makes of a machine."""

import io
import shlex
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from obsspec_gym.envs.machine import Machines, provision
from obsspec_gym.envs.sandbox import Sandbox
from obsspec_gym.envs.tasks.build_script import CONTEXT, failure
from obsspec_gym.envs.tasks.dockerfile import DockerfileError
from obsspec_gym.envs.tasks.image import PATH, read_image
from obsspec_gym.envs.tasks.task import Image, Task
from obsspec_gym.errors import SandboxError, SandboxUnavailableError

Build = Callable[[str], Sandbox]


def steps(image: Image) -> list[list[str]]:
    """The calls at the end of a build script, as words."""
    names = ("run", "copy", "unpack", "directory")
    begin = image.build.rindex("finish() {")
    return [words for words in map(shlex.split, image.build[begin:].splitlines()) if words and words[0] in names]


def test_state_is_carried_from_step_to_step(tmp_path: Path) -> None:
    image = read_image(
        """\
        ARG VERSION=1
        FROM base:${VERSION}
        ARG LEVEL=3 NONE
        ENV A=one B="two $A" C=$LEVEL
        ENV OLD  the rest  of it
        WORKDIR /srv
        WORKDIR app/$A
        USER me:staff
        RUN echo $A
        SHELL ["/bin/bash", "-ec"]
        ENV PATH=/opt/bin:$PATH
        RUN ["printf", "%s", "$A"]
        RUN x=1
        EXPOSE 80
        CMD ["sleep"]
        """,
        tmp_path,
    )
    variables = ["LEVEL=3", "A=one", "B=two ", "C=3", "OLD=the rest  of it"]
    assert steps(image) == [
        ["directory", "6", "/srv"],
        ["directory", "7", "/srv/app/one"],
        ["run", "9", "me:staff", "/srv/app/one", *variables, f"PATH={PATH}", "--", "/bin/sh", "-c", "echo $A"],
        ["run", "12", "me:staff", "/srv/app/one", *variables, f"PATH=/opt/bin:{PATH}", "--", "printf", "%s", "$A"],
        ["run", "13", "me:staff", "/srv/app/one", *variables, f"PATH=/opt/bin:{PATH}", "--", "/bin/bash", "-ec", "x=1"],
    ]
    assert (image.user, image.workdir) == ("me:staff", "/srv/app/one")
    assert image.env == {"A": "one", "B": "two ", "C": "3", "OLD": "the rest  of it", "PATH": f"/opt/bin:{PATH}"}
    assert CONTEXT not in image.files


def test_copies_name_what_they_bring_and_the_archive_holds_it(tmp_path: Path) -> None:
    (tmp_path / "data/deep").mkdir(parents=True)
    (tmp_path / "data/deep/x").write_text("x")
    for name in ("a.txt", "b.txt", "c.md"):
        (tmp_path / name).write_text(name)
    (tmp_path / "a.txt").chmod(0o755)
    image = read_image(
        "FROM base\nENV D=/dest\nWORKDIR /w\nCOPY --chown=me --chmod=600 *.txt sub/\nCOPY data $D\n"
        'COPY ["c.md", "$D/with space"]\nCOPY <<EOF /hello\n$D "quoted"\nEOF\n',
        tmp_path,
    )
    assert steps(image)[1:] == [
        ["copy", "4", "me", "600", "/w/sub/", "context/a.txt"],
        ["copy", "4", "me", "600", "/w/sub/", "context/b.txt"],
        ["copy", "5", "", "", "/dest", "context/data"],
        ["copy", "6", "", "", "/dest/with space", "context/c.md"],
        ["copy", "7", "", "", "/hello", "heredocs/0/EOF"],
    ]
    archive = image.files[CONTEXT]
    assert isinstance(archive, bytes)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        assert {"context/data/deep/x", "context/a.txt", "context/c.md", "heredocs/0/EOF"} <= set(tar.getnames())
        document = tar.extractfile("heredocs/0/EOF")
        assert document is not None
        assert document.read() == b'/dest "quoted"\n'
        assert tar.getmember("context/a.txt").mode & 0o777 == 0o755


@pytest.mark.parametrize(
    ("dockerfile", "message"),
    [
        ("RUN a", "line 1: expected FROM before RUN"),
        ("# nothing", "line 1: there is no FROM"),
        ("FROM a AS b\nFROM c", "line 2: a second FROM"),
        ("FROM a\nCOPY --from=b x y", "line 2: COPY --from is not supported"),
        ("FROM a\nCOPY missing /x", "line 2: missing is not in the build context"),
        ("FROM a\nCOPY ../../etc/passwd /x", "line 2: ../../etc/passwd is not in the build context"),
        ("FROM a\nCOPY link /x", "line 2: link is not in the build context"),
        ("FROM a\nCOPY f g /x", "line 2: COPY of several files needs a destination that ends with /"),
        ("FROM a\nADD https://example.org/x /x", "line 2: ADD of https://example.org/x needs the network"),
        ("FROM a\nRUN --mount=type=bind,target=/x a", "line 2: RUN --mount=type=bind,target=/x is not supported"),
        ("FROM a\nRUN --security=insecure a", "line 2: RUN --security=insecure is not supported"),
        ("FROM a\nRUN", "line 2: RUN needs a command"),
        ("FROM a\n\nONBUILD RUN a", "line 3: the instruction ONBUILD is not supported"),
        ("FROM a\nENV A", "line 2: ENV A has no value"),
        ("FROM a\nENV A=1 B", "line 2: expected NAME=VALUE"),
        ("FROM a\nENV 1=2", "line 2: expected the name of a variable"),
        ("FROM a\nENV A=${B%c}", "line 2: the substitution"),
        ("FROM a\nUSER a b", "line 2: expected USER NAME"),
        ("FROM a\nSHELL /bin/bash", "line 2: SHELL needs a JSON array"),
    ],
)
def test_anything_else_is_refused_in_a_sentence_with_its_line(tmp_path: Path, dockerfile: str, message: str) -> None:
    (tmp_path / "f").write_text("f")
    (tmp_path / "g").write_text("g")
    (tmp_path / "link").symlink_to("/etc/passwd")
    with pytest.raises(DockerfileError) as refused:
        read_image(dockerfile, tmp_path)
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)


def test_what_a_build_says_is_told_from_what_it_prints() -> None:
    assert failure("lots\nobsspec-build: line 3: RUN failed\nwith more\n") == "Dockerfile line 3: RUN failed with more"
    assert failure("obsspec-build: done\n") is None


@pytest.fixture
def build(tmp_path: Path, needs_image: None) -> Iterator[Build]:
    """Makes the machine of a Dockerfile on the base image; the agent is whoever it says."""
    sandboxes = []

    def make(dockerfile: str) -> Sandbox:
        task = Task("t", "", image=read_image(dockerfile, tmp_path))
        sandbox = Machines("bubblewrap")(task)
        sandboxes.append(sandbox)
        sandbox.start()
        provision(sandbox, task)
        return sandbox

    yield make
    for sandbox in sandboxes:
        sandbox.close()


def test_a_machine_is_made_as_the_file_says(build: Build, tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("#!/bin/sh\necho tool $1\n")
    (tmp_path / "tool").chmod(0o755)
    (tmp_path / "tree/in").mkdir(parents=True)
    (tmp_path / "tree/in/leaf").write_text("leaf")
    with tarfile.open(tmp_path / "packed.tgz", "w:gz") as tar:
        tar.add(tmp_path / "tree", "unpacked")
    sandbox = build(
        """\
FROM ubuntu:22.04
ENV DEBIAN_FRONTEND=noninteractive GREETING="hello there"
RUN apt-get update && apt-get install -y --no-install-recommends \\
    python3 python3-pip=* \\
    # a comment
    jq \\
    && rm -rf /var/lib/apt/lists/*
RUN pip3 install --no-cache-dir pytest 'pyyaml>=5' && python3 -m pip install pytest
RUN useradd -m -d /home/user -s /bin/bash user
COPY --chmod=750 tool /usr/local/bin/
COPY tree /opt/tree/
ADD packed.tgz /opt/
RUN <<EOF
set -e
mkdir -p /home/user/work
echo "$GREETING" > /home/user/work/greeting
EOF
COPY <<EOF /etc/motd
$GREETING
EOF
RUN cat <<'EOF' > /home/user/work/raw
$GREETING `not run`
EOF
RUN chown -R user:user /home/user && chmod 700 /home/user/work
WORKDIR /home/user/work
USER user
RUN pwd > where && echo $HOME >> where
ENTRYPOINT ["false"]
"""
    )
    result = sandbox.run(
        'cat greeting raw where /etc/motd /opt/tree/in/leaf /opt/unpacked/in/leaf; echo; pwd; echo "$HOME $GREETING";'
        "whoami; stat -c %a /usr/local/bin/tool work/.. ; ls /tmp /home; ls -d /home/agent; type -p apt-get pip3 chown"
    )
    assert result.output.decode().splitlines()[:-2] == [
        "hello there",
        "$GREETING `not run`",
        "/home/user/work",
        "/home/user",
        "hello there",
        "leafleaf",
        "/home/user/work",
        "/home/user hello there",
        "user",
        "750",
        "stat: cannot statx 'work/..': No such file or directory",
        "/home:",
        "user",
        "",
        "/tmp:",
        "ls: cannot access '/home/agent': No such file or directory",
    ]
    assert "apt" not in result.output.decode().splitlines()[-2]


def test_accounts_have_homes_however_their_options_are_written(build: Build) -> None:
    sandbox = build(
        "FROM base\nRUN useradd -ms /bin/bash one && useradd --create-home --shell=/bin/sh --home-dir /srv/two two\n"
        "RUN adduser --disabled-password --gecos '' three && adduser three users && chown -R one:one -- /home/one\n"
        "USER one\nRUN touch ~/made\n"
    )
    result = sandbox.run("ls -d ~/made /srv/two /home/three; getent passwd one | cut -d: -f7; getent group users")
    assert result.output.decode().splitlines() == [
        "/home/one/made",
        "/home/three",
        "/srv/two",
        "/bin/bash",
        "users:x:100:three",
    ]


@pytest.mark.parametrize(
    ("commands", "message"),
    [
        ("RUN apt-get install -y jq no-such || true", "line 2: the base image does not have: apt package no-such"),
        ("RUN apt-get -o A=b install -y jq=0.1", "line 2: the base image does not have: apt package jq=0.1"),
        ("RUN apt remove -y jq", "line 2: the base image does not have: removal of the apt package jq"),
        ("RUN true\nRUN pip install 'pytest>=99'", "line 3: the base image does not have: Python package pytest>=99"),
        ("RUN python3 -m pip install nothing-like-it", "line 2: RUN failed with exit status 1: .*nothing-like-it"),
        ("RUN echo before; exit 3", "line 2: RUN failed with exit status 3: before"),
        ("RUN chown me /missing", "line 2: RUN failed with exit status 1"),
    ],
)
def test_what_the_base_image_does_not_have_is_refused_by_name(build: Build, commands: str, message: str) -> None:
    with pytest.raises(SandboxError, match=message):
        build(f"FROM base\n{commands}\n")


def test_a_machine_needs_a_sandbox_that_can_be_one() -> None:
    task = Task("t", "", image=Image())
    with pytest.raises(SandboxUnavailableError, match="local"):
        Machines("local")(task)
