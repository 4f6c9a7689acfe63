"""What ``obsspec doctor`` says of Docker sandboxes, and what ``--clean`` removes."""

from __future__ import annotations

import contextlib
import os
from typing import Any

from obsspec_gym.cli.doctor import Finding
from obsspec_gym.envs.images.cache import cached
from obsspec_gym.envs.sandbox.daemon import Daemon, telling
from obsspec_gym.envs.sandbox.docker_image import IMAGE_VARIABLE, has_image
from obsspec_gym.envs.sandbox.reaper import leftovers, reap
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
    """Removes what killed runs left on the Docker daemon; returns what that was.

    Raises:
        SandboxUnavailableError: If there is no daemon.
    """
    with contextlib.closing(Daemon()) as daemon:
        return reap(daemon)


def _sandbox(daemon: Daemon) -> Finding:
    with telling("say what it can do"):
        info: dict[str, Any] = daemon.api.info()
    bounds = {"memory": info.get("MemoryLimit"), "swap": info.get("SwapLimit"), "processes": info.get("PidsLimit")}
    bounds["CPU"] = info.get("CpuCfsQuota")
    bounds["system calls"] = any("seccomp" in option for option in info.get("SecurityOptions") or [])
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


def _leftovers(daemon: Daemon) -> Finding:
    left = leftovers(daemon)
    if not left:
        return Finding("docker_leftovers", True, "killed runs left nothing")
    return Finding("docker_leftovers", False, f"killed runs left {', '.join(left)}", "obsspec doctor --clean")
