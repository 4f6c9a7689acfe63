"""Programs that answer for others in a build: options however they are written, alone and in clusters."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from obsspec_gym.envs.tasks.build_programs import APT, OWNER, PIP, USERADD

pytestmark = pytest.mark.skipif(shutil.which("getopt") is None, reason="needs getopt, of util-linux")

PASSWD = "root:x:0:0:root:/root:/bin/bash\ntaken:x:1000:1000::/home/taken:/bin/sh\n"
GROUP = "root:x:0:\nusers:x:100:\ntaken:x:1000:\nstaff:x:50:\nwheel:x:51:root\n"


@dataclass(frozen=True)
class Machine:
    """A directory in place of ``/``, and what is run there."""

    top: Path

    def run(self, name: str, script: str, *words: str) -> subprocess.CompletedProcess[str]:
        program = self.top / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(script.replace("/etc/", f"{self.top}/etc/").replace("/home", f"{self.top}/home"))
        moved = [word.replace("/home/", f"{self.top}/home/") for word in words]
        return subprocess.run(
            ["bash", str(program), *moved], cwd=self.top, capture_output=True, text=True, timeout=60, check=False
        )

    def table(self, name: str) -> dict[str, list[str]]:
        lines = (self.top / "etc" / name).read_text().splitlines()
        return {line.split(":")[0]: line.replace(str(self.top), "").split(":")[1:] for line in lines}


def fresh(top: Path) -> Machine:
    (top / "etc/skel").mkdir(parents=True)
    (top / "etc/skel/.profile").write_text("")
    for name, text in (("passwd", PASSWD), ("group", GROUP), ("shadow", "root:*:1:0:99999:7:::\n")):
        (top / "etc" / name).write_text(text)
    return Machine(top)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return fresh(tmp_path)


@dataclass(frozen=True)
class Option:
    letter: str
    word: str
    value: str | None = None


FLAGS = [
    Option("m", "create-home"),
    Option("N", "no-user-group"),
    Option("o", "non-unique"),
    Option("l", "no-log-init"),
]
VALUED = {
    "shell": st.sampled_from(["/bin/bash", "/usr/sbin/nologin"]).map(lambda value: Option("s", "shell", value)),
    "home": st.sampled_from(["/home/me", "/home/deep/in it"]).map(lambda value: Option("d", "home-dir", value)),
    "uid": st.integers(1200, 1210).map(lambda value: Option("u", "uid", str(value))),
    "gid": st.sampled_from(["staff", "51"]).map(lambda value: Option("g", "gid", value)),
    "groups": st.sampled_from(["staff", "staff,wheel", "100"]).map(lambda value: Option("G", "groups", value)),
    "comment": st.sampled_from(["", "Me, myself", "-m"]).map(lambda value: Option("c", "comment", value)),
    "inactive": st.just(Option("f", "inactive", "-1")),
}


@st.composite
def written(draw: st.DrawFn) -> tuple[dict[str, Option], list[str]]:
    """Options, and one of the ways to write them: clusters, ``--name=value``, values apart, in any order."""
    options = {option.word: option for option in draw(st.lists(st.sampled_from(FLAGS), unique=True))}
    names = draw(st.lists(st.sampled_from(sorted(VALUED)), unique=True))
    options |= {name: draw(VALUED[name]) for name in names}
    words: list[list[str]] = []
    cluster = "-"
    for option in draw(st.permutations(list(options.values()))):
        how = draw(st.sampled_from(["cluster", "long", "equals"]))
        if how == "cluster":
            cluster += option.letter
            if option.value is not None:
                together = draw(st.booleans()) and option.value != ""
                words.append([cluster + option.value] if together else [cluster, option.value])
                cluster = "-"
        elif option.value is None:
            words.append([f"--{option.word}"])
        else:
            words.append([f"--{option.word}={option.value}"] if how == "equals" else [f"--{option.word}", option.value])
    if cluster != "-":
        words.append([cluster])
    words.insert(draw(st.integers(0, len(words))), ["me"])
    return options, [word for part in words for word in part]


@given(written())
@settings(max_examples=60)
def test_useradd_makes_what_its_options_say(case: tuple[dict[str, Option], list[str]]) -> None:
    options, words = case
    with tempfile.TemporaryDirectory() as top:
        machine = fresh(Path(top))
        done = machine.run("useradd", USERADD, *words)
        assert (done.returncode, done.stderr) == (0, ""), words
        _, uid, gid, comment, home, shell = machine.table("passwd")["me"]
        values = {name: option.value for name, option in options.items()}
        assert uid == values.get("uid", "1001")
        assert shell == values.get("shell", "/bin/sh")
        assert home == values.get("home", "/home/me")
        assert comment == values.get("comment", "")
        given_ = {"staff": "50", "51": "51"}.get(str(values.get("gid")))
        assert gid == (given_ or ("100" if "no-user-group" in options else uid))
        made = Path(top + home)
        assert made.is_dir() == ("create-home" in options)
        assert not made.is_dir() or (made / ".profile").is_file()
        members = {name for name, row in machine.table("group").items() if "me" in row[2].split(",")}
        assert members == {"100": {"users"}, "staff,wheel": {"staff", "wheel"}, "staff": {"staff"}}.get(
            str(values.get("groups")), set()
        )
        assert machine.table("group")["wheel"][2] == ("root,me" if "wheel" in members else "root")


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["taken"], 9),
        (["staff"], 9),  # a group is called that
        (["-u", "1000", "me"], 4),
        (["-g", "nobodys", "me"], 6),
        (["-mG", "staff,nobodys", "me"], 6),
        (["--no-such", "me"], 2),
        (["-s"], 2),
        ([], 2),
        (["me", "you"], 2),
        (["not a name"], 3),
    ],
)
def test_useradd_refuses_as_the_real_one_does(machine: Machine, words: list[str], status: int) -> None:
    assert machine.run("useradd", USERADD, *words).returncode == status
    assert "me" not in machine.table("passwd")


def test_adduser_of_debian(machine: Machine) -> None:
    words = ["--disabled-password", "--gecos", "", "--uid=1500", "me", "--home", "/home/other"]
    assert machine.run("adduser", USERADD, *words).returncode == 0
    assert machine.table("passwd")["me"] == ["x", "1500", "1500", "", "/home/other", "/bin/bash"]
    assert (machine.top / "home/other/.profile").is_file()
    assert machine.run("adduser", USERADD, "me", "wheel").returncode == 0
    assert machine.table("group")["wheel"][2] == "root,me"
    assert machine.run("adduser", USERADD, "--system", "--no-create-home", "daemon").returncode == 0
    assert machine.table("passwd")["daemon"][1] == "999"
    assert not (machine.top / "home/daemon").exists()
    assert machine.run("adduser", USERADD, "nobody-there", "wheel").returncode == 1


@pytest.mark.parametrize(
    ("name", "words", "missing"),
    [
        ("chown", ["-R", "me:me", "there"], None),
        ("chown", ["-hR", "me", "there", "gone"], "gone"),
        ("chown", ["--from=a:b", "me", "gone"], "gone"),
        ("chown", ["--from", "a:b", "me", "there"], None),
        ("chown", ["--reference=there", "gone"], "gone"),
        ("chown", ["--reference", "there", "there"], None),
        ("chgrp", ["--recursive", "staff", "--", "-there"], None),
        ("chgrp", ["staff", "there", "gone"], "gone"),
    ],
)
def test_chown_looks_for_its_files_only(machine: Machine, name: str, words: list[str], missing: str | None) -> None:
    for there in ("there", "-there"):
        (machine.top / there).touch()
    done = machine.run(name, OWNER, *words)
    assert done.returncode == (missing is not None)
    assert done.stderr == (f"{name}: cannot access '{missing}': No such file or directory\n" if missing else "")


@pytest.fixture
def tools(machine: Machine) -> Iterator[Machine]:
    """With a dpkg-query that knows jq, and somewhere to say what is refused."""
    (machine.top / "bin").mkdir()
    (machine.top / "bin/dpkg-query").write_text('#!/bin/bash\n[ "${@: -1}" = jq ] && echo "installed 1.6"\nexit 0\n')
    (machine.top / "bin/dpkg-query").chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{machine.top}/bin:{os.environ['PATH']}")
        patch.setenv("OBSSPEC_REFUSED", str(machine.top / "refused"))
        yield machine


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (["-yqq", "install", "jq"], []),
        (["install", "-yt", "stable", "jq"], []),
        (["install", "-yo", "Dpkg::Use-Pty=0", "jq", "no-such"], ["no-such"]),
        (["-oDpkg::Use-Pty=0", "install", "no-such"], ["no-such"]),
        (["install", "--target-release=stable", "jq"], []),
        (["install", "--target-release", "stable", "no-such"], ["no-such"]),
        (["-qy", "--no-install-recommends", "install", "no-such", "nor-such"], ["no-such", "nor-such"]),
    ],
)
def test_apt_knows_names_from_options(tools: Machine, words: list[str], refused: list[str]) -> None:
    done = tools.run("apt-get", APT.replace("/usr/share/doc", "/nowhere"), *words)
    found = (tools.top / "refused").read_text().split("apt package ")[1:] if refused else []
    assert ([line.strip() for line in found], done.returncode) == (refused, 100 if refused else 0)


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (["pytest"], []),
        (["-q", "pytest>=99"], ["pytest>=99"]),
        (["-rneeds.txt"], ["no-such"]),
        (["-Uqr", "needs.txt"], ["no-such"]),
        (["--requirement=needs.txt"], ["no-such"]),
        (["-i", "https://example.org", "--timeout=9", "--no-cache-dir", "pytest"], []),
        (["--index-url=https://example.org", "no-such"], ["no-such"]),
        (["--no-binary", ":all:", "pytest"], []),
        (["--target=/x", "pytest"], None),
        (["-t/x", "pytest"], None),
        (["-e."], None),
        (["./here"], None),
    ],
)
def test_pip_knows_requirements_from_options(tools: Machine, words: list[str], refused: list[str] | None) -> None:
    """None: what is asked for is something else, and pip itself is asked."""
    (tools.top / "needs.txt").write_text("# why\n-i https://example.org\npytest >= 1  # or later\nno-such\n")
    pip = tools.top / "pip.py"
    pip.write_text(PIP)
    (tools.top / "bin/python3").write_text(f"#!/bin/bash\necho {json.dumps('asked')}\n")
    (tools.top / "bin/python3").chmod(0o755)
    done = subprocess.run(
        [sys.executable, str(pip), "install", *words], cwd=tools.top, capture_output=True, text=True, check=False
    )
    if refused is None:
        assert (done.stdout, done.returncode) == ("asked\n", 0), done.stderr
        return
    found = (tools.top / "refused").read_text().splitlines()
    assert found == [f"Python package {name}" for name in refused]
    assert done.returncode == bool(refused)
