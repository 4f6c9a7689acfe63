"""What ``obsspec doctor`` says of Docker sandboxes, and what ``--clean`` removes."""

from __future__ import annotations

import contextlib
import os
from typing import Any

from obsspec_gym.cli.doctor import Finding
from obsspec_gym.envs.images.cache import cached
from obsspec_gym.envs.sandbox.daemon import Daemon, telling
from obsspec_gym.envs.sandbox.docker_disk import bounds_disk, may_bound_disk
from obsspec_gym.envs.sandbox.docker_image import (
    IMAGE_VARIABLE,
    choose_image,
    has_image,
    old_images,
    remove_old_images,
)
from obsspec_gym.envs.sandbox.reaper import leftovers, reap, strangers
from obsspec_gym.errors import MissingExtraError, SandboxError, SandboxUnavailableError


def examine_docker() -> list[Finding]:
    """Whether containers can be sandboxes here, and what killed runs left of them."""
    try:
        daemon = Daemon()
    except MissingExtraError as error:
        return [Finding("docker_sandbox", False, str(error), "pip install 'obsspec_gym[docker]'")]
    except SandboxUnavailableError as error:
        return [Finding("docker_sandbox", False, str(error), "apt-get install -y docker.io && dockerd &")]
    with contextlib.closing(daemon):
        try:
            return [_sandbox(daemon), _leftovers(daemon)]
        except SandboxError as error:
            return [Finding("docker_sandbox", False, str(error), "systemctl restart docker")]


def clean() -> list[str]:
    """Removes what killed runs left on the Docker daemon, and images that were built anew; returns what that was.

    Raises:
        SandboxUnavailableError: If there is no daemon.
    """
    with contextlib.closing(Daemon()) as daemon:
        return reap(daemon) + [f"image {name}" for name in remove_old_images(daemon)]


def _sandbox(daemon: Daemon) -> Finding:
    with telling("say what it can do"):
        info: dict[str, Any] = daemon.api.info()
    bounds = {"memory": info.get("MemoryLimit"), "swap": info.get("SwapLimit"), "processes": info.get("PidsLimit")}
    bounds["CPU"] = info.get("CpuCfsQuota")
    bounds["system calls"] = any("seccomp" in option for option in info.get("SecurityOptions") or [])
    bounds["the disk of machines of a task's own (user=), which can fill the daemon's"] = _bounds_disk(daemon, info)
    unbounded = [name for name, bounded in bounds.items() if not bounded]
    detail = f"{info.get('ServerVersion')}, {info.get('Driver')}"
    detail += f"; does not bound {', '.join(unbounded)}" if unbounded else "; bounds everything"
    if name := os.environ.get(IMAGE_VARIABLE):
        there, fix = has_image(daemon, name), f"docker pull {name}"
    else:
        name, there, fix = "the base image", cached().is_dir(), "obsspec image build"
    if not there:
        return Finding("docker_sandbox", False, f"{detail}; {name} is not there", fix)
    return Finding("docker_sandbox", True, f"{detail}; {name} is there")


def _bounds_disk(daemon: Daemon, info: dict[str, Any]) -> bool:
    """Whether the size of a root file system can be bounded; tried where there is an image to try it with."""
    if not may_bound_disk(info):
        return False
    name = os.environ.get(IMAGE_VARIABLE)
    there = has_image(daemon, name) if name else cached().is_dir()
    return not there or bounds_disk(daemon, choose_image(daemon, None))


def _leftovers(daemon: Daemon) -> Finding:
    left = leftovers(daemon) + [f"image {name}" for name in old_images(daemon)]
    others = strangers(daemon)
    alone = f"; left alone, for nobody here can tell whether they are in use: {', '.join(others)}" if others else ""
    if not left:
        return Finding("docker_leftovers", True, f"killed runs and old images left nothing{alone}")
    detail = f"killed runs and old images left {', '.join(left)}{alone}"
    return Finding("docker_leftovers", False, detail, "obsspec doctor --clean")
