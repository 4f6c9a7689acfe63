"""The base image on a daemon: the one that is built now, labelled; older ones go, others' stay."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from obsspec_gym.cli import main
from obsspec_gym.envs.images import find_definition, image_tar
from obsspec_gym.envs.images.cache import cached, image_content
from obsspec_gym.envs.sandbox import docker_image
from obsspec_gym.envs.sandbox.daemon import Daemon
from obsspec_gym.envs.sandbox.docker_image import IMAGE_VARIABLE, LABEL, choose_image, old_images, remove_old_images
from obsspec_gym.errors import SandboxUnavailableError


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with a small tree in place of the base image."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(IMAGE_VARIABLE)
    tree = cached()
    tree.mkdir(parents=True)
    (tree / "version").write_text(str(tmp_path))
    return tree


def build_anew(tree: Path, version: str) -> None:
    """What a build does with an older tree and its tar."""
    shutil.rmtree(tree)
    tree.with_name(f"{tree.name}.tar").unlink()
    tree.mkdir()
    (tree / "version").write_text(version)


def test_a_daemon_has_the_image_that_is_built_now(tree: Path, daemon: Daemon) -> None:
    first = choose_image(daemon, None)
    assert first == f"obsspec-base:{find_definition().digest}-{image_content()}" == choose_image(daemon, None)
    labels = daemon.api.inspect_image(first)["Config"]["Labels"]
    assert labels[LABEL] == "base"
    assert old_images(daemon) == []
    build_anew(tree, "2")
    second = choose_image(daemon, None)
    assert second != first
    assert old_images(daemon) == [first]
    assert remove_old_images(daemon) == [first]
    assert old_images(daemon) == []
    assert daemon.api.images(first) == []
    assert daemon.api.inspect_image(second)["Config"]["Labels"] == labels
    daemon.api.remove_image(second)


def test_the_same_content_is_the_same_image(tree: Path, daemon: Daemon) -> None:
    first = choose_image(daemon, None)
    content = (tree / "version").read_text()
    build_anew(tree, content)
    image_tar()
    assert choose_image(daemon, None).startswith(f"obsspec-base:{find_definition().digest}-")
    assert old_images(daemon) in ([], [first])  # times are of the content, too
    for name in {first, choose_image(daemon, None)}:
        daemon.api.remove_image(name)


def test_an_old_image_that_is_used_stays_until_it_is_not(
    tree: Path, daemon: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    first = choose_image(daemon, None)
    container = daemon.api.create_container(first, ["/none"])["Id"]
    build_anew(tree, "2")
    assert (old_images(daemon), remove_old_images(daemon)) == ([first], [])
    daemon.api.remove_container(container)
    assert main(["doctor", "--json"]) == 0
    finding = json.loads(capsys.readouterr().out.splitlines()[-1])["docker_leftovers"]
    assert f"image {first}" in finding["detail"]
    assert main(["doctor", "--clean", "--json"]) == 0
    assert f"removed image {first}" in capsys.readouterr().out.splitlines()
    assert daemon.api.images(first) == []


def test_what_another_cache_handed_over_is_left_alone(
    tree: Path, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(docker_image, "machine_id", lambda: "another machine")
        theirs = choose_image(daemon, None)
    build_anew(tree, "2")
    assert (old_images(daemon), remove_old_images(daemon)) == ([], [])
    daemon.api.remove_image(theirs)


def test_without_a_tree_the_daemons_own_will_do(tree: Path, daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker_image, "_DEFINITION", f"{LABEL}.tested")  # other tests' images are not found by it
    name = choose_image(daemon, None)
    shutil.rmtree(tree)
    assert choose_image(daemon, None) == daemon.api.inspect_image(name)["Id"]
    assert old_images(daemon) == []
    daemon.api.remove_image(name)
    with pytest.raises(SandboxUnavailableError, match="obsspec image build"):
        choose_image(daemon, None)
