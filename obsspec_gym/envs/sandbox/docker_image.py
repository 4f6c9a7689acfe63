"""Which image a container gets, and how the base image comes to the daemon."""

from __future__ import annotations

import os
import threading
from typing import Any

from obsspec_gym.envs.images import find_definition, image_tar
from obsspec_gym.envs.sandbox.daemon import Daemon, not_found, telling
from obsspec_gym.errors import SandboxError

IMAGE_VARIABLE = "OBSSPEC_DOCKER_IMAGE"
"""Environment variable that names another image than the base image."""

_IMPORT_SECONDS = 600.0
_importing = threading.Lock()


def choose_image(daemon: Daemon, image: str | None) -> str:
    """The name of an image for the daemon: the given one, the one that the environment names, or our base image.

    The base image is handed to a daemon that does not have it.

    Raises:
        SandboxUnavailableError: If the base image is wanted and was not built.
        SandboxError: If the daemon does not take it.
    """
    if name := image or os.environ.get(IMAGE_VARIABLE):
        return name
    definition = find_definition("base")
    repository, tag = f"obsspec-{definition.name}", definition.digest
    with _importing:
        if not has_image(daemon, f"{repository}:{tag}"):
            _import(daemon.api, str(image_tar(definition.name)), repository, tag)
    return f"{repository}:{tag}"


def has_image(daemon: Daemon, name: str) -> bool:
    """Whether the daemon has an image."""
    try:
        with telling("look for an image"):
            daemon.api.inspect_image(name)
    except SandboxError as error:
        if not_found(error.__cause__):
            return False
        raise
    return True


def _import(api: Any, path: str, repository: str, tag: str) -> None:
    before, api.timeout = api.timeout, _IMPORT_SECONDS
    try:
        with telling("take the base image"):
            api.import_image_from_file(path, repository=repository, tag=tag)
    finally:
        api.timeout = before
