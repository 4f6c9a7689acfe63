"""Definitions, the archive's sources, the cache, and builds that cannot be or that fail."""

from __future__ import annotations

import json
import os
import shutil
import stat
import tarfile
import threading
from pathlib import Path

import pytest

from obsspec_gym.cli import main
from obsspec_gym.envs.images import Definition, apt, build, build_image, find_definition, image_tar, image_tree
from obsspec_gym.envs.images.cache import cache_directory, cached, image_content
from obsspec_gym.envs.sandbox.bubblewrap import bubblewrap_available, sandbox_uid
from obsspec_gym.errors import InvalidArgumentError, SandboxError, SandboxUnavailableError


def define(path: Path, packages: str = "bash\n", script: str = "true\n", **files: str) -> Definition:
    (path / "files").mkdir(parents=True, exist_ok=True)
    (path / "packages.txt").write_text(packages)
    (path / "configure.sh").write_text(script)
    for name, text in files.items():
        (path / "files" / name).write_text(text)
    return find_definition(f"{path}/")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, where whoever sandboxes are started as gets to."""
    directory = tmp_path
    while directory != directory.parent and os.access(directory, os.W_OK) and directory.stat().st_uid == os.geteuid():
        directory.chmod(directory.stat().st_mode | 0o001)
        directory = directory.parent
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "obsspec_gym" / "images"


@pytest.fixture
def mmdebstrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts a script of ours in the place of mmdebstrap."""
    if reason := bubblewrap_available():
        pytest.skip(reason)
    monkeypatch.setattr(apt, "sources", lambda: {"archive.list": "deb http://archive.invalid/debian stable main\n"})
    monkeypatch.setattr(apt, "options", list)

    def put(script: str) -> None:
        programs = tmp_path / "programs"
        programs.mkdir()
        (programs / "mmdebstrap").write_text(f"#!/bin/sh\n{script}\n")
        (programs / "mmdebstrap").chmod(0o755)
        monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")

    return put


def test_a_definition_is_read_and_its_digest_names_all_of_it(tmp_path: Path):
    first = define(tmp_path / "own", "# why\n\nbash  # the shell\ngit\n", hello="hi\n")
    assert (first.name, first.packages, first.files) == ("own", ["bash", "git"], {"hello": b"hi\n"})
    digests = {digest := first.digest}
    digests.add(define(tmp_path / "own", "bash\ngit\n", "false\n").digest)
    digests.add(define(tmp_path / "own", "bash\n", "false\n").digest)
    digests.add(define(tmp_path / "own", "bash\n", "false\n", hello="ho\n").digest)
    digests.add(define(tmp_path / "own", "bash\n", "false\n", hello="ho\n", other="").digest)
    assert len(digests) == 5
    assert define(tmp_path / "copy", "bash\ngit\n", hello="hi\n").digest == digest


def test_no_definition(tmp_path: Path):
    with pytest.raises(InvalidArgumentError, match="no image is called 'nothing'"):
        find_definition("nothing")
    with pytest.raises(InvalidArgumentError, match="no image is called"):
        find_definition(f"{tmp_path}/")
    with pytest.raises(InvalidArgumentError, match="expected a package's name, got '--force'"):
        _ = define(tmp_path / "bad", "--force\n").packages


def test_only_the_distributions_own_archive_is_a_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    parts = tmp_path / "parts"
    parts.mkdir()
    (tmp_path / "sources.list").write_text(
        "# comment\ndeb http://mirror.example/debian stable main\ndeb-src http://mirror.example/debian stable main\n"
        "deb [signed-by=/k.gpg] http://mirror.example/ubuntu/ jammy universe\n"
        "deb http://vendor.example/apt stable main\n"
    )
    (parts / "a.sources").write_text(
        "Types: deb\nURIs: http://mirror.example/debian-security\nSuites: s\nComponents: main\n\n"
        "Types: deb\nURIs: http://vendor.example/apt\nSuites: s\nComponents: main\n\n"
        "Enabled: no\nTypes: deb\nURIs: http://off.example/debian\nSuites: s\nComponents: main\n\n"
        "Types: deb deb-src\nURIs: mirror+file:/etc/apt/mirrors/debian.list\nSuites: t\nComponents: main\n"
    )
    (parts / "a.sources.off").write_text("Types: deb\nURIs: http://wrong.example/debian\n")
    monkeypatch.setattr(apt, "_ask", lambda *words: [f"LIST='{tmp_path}/sources.list'", f"PARTS='{parts}/'"])
    found = apt.sources()
    assert found["archive.list"].splitlines() == [
        "deb http://mirror.example/debian stable main",
        "deb [signed-by=/k.gpg] http://mirror.example/ubuntu/ jammy universe",
    ]
    assert found["archive.sources"].count("URIs") == 2
    assert "vendor" not in found["archive.sources"]
    assert "off.example" not in found["archive.sources"]
    (tmp_path / "sources.list").unlink()
    shutil.rmtree(parts)
    with pytest.raises(SandboxUnavailableError, match="no Debian or Ubuntu archive"):
        apt.sources()


def test_what_is_not_built_is_named_with_the_command_that_builds_it(cache: Path):
    assert cached("base").parent == cache == cache_directory()
    for ask in (image_tree, image_tar):
        with pytest.raises(SandboxUnavailableError, match=r"is not built on this machine: obsspec image build$"):
            ask("base")
    with pytest.raises(InvalidArgumentError):
        image_tree("nothing")


def test_without_mmdebstrap_one_sentence_says_what_adds_it(cache: Path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(cache))
    assert main(["image", "build"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == (
        "obsspec: mmdebstrap is needed to build images: apt-get install -y --no-install-recommends mmdebstrap\n"
    )
    assert not cache.exists()


def test_a_failed_build_says_why_and_leaves_nothing(cache: Path, tmp_path: Path, mmdebstrap):
    definition = define(tmp_path / "own")
    mmdebstrap("echo 'E: no route to the archive'; exit 7")
    with pytest.raises(SandboxError, match=r"could not fetch the packages: .*no route to the archive.*exit status 7"):
        build_image(f"{definition.path}/")
    assert os.listdir(cache) == []


def test_an_interrupted_build_leaves_nothing(cache: Path, tmp_path: Path, mmdebstrap):
    definition = define(tmp_path / "own")
    mmdebstrap("echo 'I: downloading'; sleep 1000 & echo $! > \"$HOME/../../pid\"; echo 'I: pid'; wait")
    cache.mkdir(parents=True)
    cache.chmod(0o777)

    def interrupt(step: str) -> None:
        if step == "pid":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_image(f"{definition.path}/", say=interrupt)
    assert os.listdir(cache) == ["pid"]
    assert not _alive(int((cache / "pid").read_text()))


def test_what_a_killed_build_left_is_removed_and_a_running_one_is_left_alone(cache: Path, tmp_path: Path, mmdebstrap):
    definition = define(tmp_path / "own")
    mmdebstrap("exit 1")
    (cache / ".building-killed/tree").mkdir(parents=True)
    (cache / ".building-running").mkdir()
    with build._locked(cache / ".building-running"), pytest.raises(SandboxError):
        build_image(f"{definition.path}/")
    assert os.listdir(cache) == [".building-running"]


def _alive(pid: int) -> bool:
    waited = threading.Event()
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        if state == "Z":
            return False
        waited.wait(0.05)
    return True


def test_what_is_there_is_not_built_again(cache: Path, tmp_path: Path, capsys):
    definition = define(tmp_path / "own")
    tree = cached(f"{definition.path}/")
    (tree / "home/agent").mkdir(parents=True)
    (tree / "file").write_text("12345")
    (tree / "home/agent/file").write_text("agent's")
    assert image_tree(f"{definition.path}/") == tree
    assert main(["image", "build", f"{definition.path}/", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["tree"], said["digest"], said["mib"]) == (str(tree), definition.digest, 0)
    with pytest.raises(InvalidArgumentError, match="exists: expected a path for a new directory"):
        build_image(f"{definition.path}/", out=tmp_path)
    assert main(["image", "tar", f"{definition.path}/", "--json"]) == 0
    with tarfile.open(json.loads(capsys.readouterr().out)["tar"]) as tar:
        owners = {entry.name: (entry.uid, entry.gid) for entry in tar}
    agents = {"home/agent", "home/agent/file"}
    assert owners == {name: (1000, 1000) if name in agents else (0, 0) for name in ("file", "home", *agents)}
    assert image_tar(f"{definition.path}/") == tree.with_name(f"{tree.name}.tar")


@pytest.fixture(scope="module")
def base() -> Path:
    try:
        return image_tree()
    except SandboxUnavailableError as error:
        pytest.skip(str(error))


def test_the_built_base_image_is_whole(base: Path):
    assert base.stat().st_uid == sandbox_uid()
    wanted = ("bash", "git", "python3", "pytest", "gcc", "make", "xz", "ps", "awk", "find", "sed", "tar", "gzip")
    assert [name for name in wanted if not os.path.lexists(base / "usr/bin" / name)] == []
    passwd = (base / "etc/passwd").read_text().splitlines()
    assert "agent:x:1000:1000:agent:/home/agent:/bin/bash" in passwd
    status = (base / "var/lib/dpkg/status").read_text()
    assert status.count("Status: install ok installed") == status.count("\nVersion: ")
    setuid = [path for path in (base / "usr/bin").iterdir() if path.lstat().st_mode & (stat.S_ISUID | stat.S_ISGID)]
    assert setuid == []
    assert stat.S_IMODE((base / "tmp").stat().st_mode) == 0o1777
    left = [name for name in ("etc/apt/sources.list", "etc/apt/apt.conf.d/99mmdebstrap") if (base / name).exists()]
    assert left == []
    assert list((base / "var/cache/apt/archives").glob("*.deb")) == []
    assert list((base / "usr/lib/python3.11/__pycache__" if (base / "usr/lib/python3.11").exists() else base).iterdir())


@pytest.mark.skipif(os.environ.get("OBSSPEC_BUILD_IMAGES") != "1", reason="asks the archive: OBSSPEC_BUILD_IMAGES=1")
def test_a_small_image_is_built_from_the_archive(cache: Path, tmp_path: Path):
    script = "ldconfig\necho configured >/etc/configured\nbash --version >/etc/bash\n"
    definition = define(tmp_path / "own", "bash\ncoreutils\ndash\nfindutils\nlibc-bin\n", script, laid="laid\n")
    tree = build_image(f"{definition.path}/")
    assert (tree / "etc/configured").read_text() == "configured\n"
    assert (tree / "laid").read_text() == "laid\n"
    assert (tree / "etc/bash").read_text().startswith("GNU bash")
    assert (tree / "etc/configured").stat().st_mtime == (tree / "laid").stat().st_mtime == 1_704_067_200
    assert os.listdir(cache) == [tree.name]
    assert os.readlink(tree / "bin") == "usr/bin"


def test_content_is_named_anew_when_it_is_built_anew(cache: Path):
    tree = cached()
    tree.mkdir(parents=True)
    (tree / "file").write_text("1")
    first = image_content()
    note = tree.with_name(f"{tree.name}.tar.sha256")
    assert note.read_text().split()[0] == first == image_content()
    note.write_text(note.read_text().replace(first, "noted"))  # it is not counted every time
    assert image_content() == "noted"
    image_tar().unlink()
    (tree / "file").write_text("2")
    assert image_content() not in (first, "noted")
    note.unlink()
    note.mkdir()  # where nothing can be noted
    assert image_content() not in (first, "noted")
