"""What a daemon says and does of sizes, told by one that is made up; a real one is asked with the Docker tests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from obsspec_gym.envs.sandbox import docker_disk
from obsspec_gym.envs.sandbox.docker_disk import disk_options
from obsspec_gym.errors import SandboxError

docker = pytest.importorskip("docker")

XFS = {"Driver": "overlay2", "DriverStatus": [["Backing Filesystem", "xfs"], ["Supports d_type", "true"]]}
EXT4 = {"Driver": "overlay2", "DriverStatus": [["Backing Filesystem", "extfs"]]}
CONTAINERD = {"Driver": "overlayfs", "DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]]}


class Api:
    """Takes sizes or does not; remembers what it has."""

    def __init__(self, info: dict[str, Any], error: Exception | None = None) -> None:
        self._info, self._error = info, error
        self.made: list[str] = []
        self.asked = 0

    def info(self) -> dict[str, Any]:
        self.asked += 1
        return self._info

    def create_host_config(self, **options: Any) -> dict[str, Any]:
        return options

    def create_container(self, image: str, command: list[str], *, name: str, **_: Any) -> None:
        if self._error:
            raise self._error
        self.made.append(name)

    def remove_container(self, name: str, **_: Any) -> None:
        self.made.remove(name)


def ask(api: Api, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(docker_disk, "_bounding", {})
    daemon: Any = SimpleNamespace(api=api)
    first = disk_options(daemon, "image", 7)
    assert disk_options(daemon, "image", 7) == first
    assert (api.asked, api.made) == (1, [])
    return first


@pytest.mark.parametrize("info", [XFS, {"Driver": "zfs"}])
def test_a_size_is_given_where_it_is_taken(info: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(Api(info), monkeypatch) == {"storage_opt": {"size": "7m"}}


@pytest.mark.parametrize("info", [EXT4, CONTAINERD, {"Driver": "vfs", "DriverStatus": None}, {}])
def test_none_is_given_where_it_counts_something_else_or_nothing(
    info: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ask(Api(info), monkeypatch) == {}


def test_none_is_given_where_the_daemon_refuses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(Api(XFS, docker.errors.APIError("--storage-opt is supported only with 'pquota'")), monkeypatch) == {}


def test_a_daemon_that_does_not_answer_has_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SandboxError, match="could not make a container"):
        ask(Api(XFS, ConnectionError("gone")), monkeypatch)
    assert docker_disk._bounding == {}
