"""Which image a container gets, how the base image comes to the daemon, and when it goes."""

from __future__ import annotations

import hashlib
import os
import threading
from typing import Any

from obsspec_gym.envs.images import Definition, find_definition, image_tar, image_tree
from obsspec_gym.envs.images.cache import cache_directory, cached, image_content
from obsspec_gym.envs.sandbox.daemon import Daemon, not_found, refused, telling
from obsspec_gym.envs.sandbox.reaper import machine_id
from obsspec_gym.errors import SandboxError

IMAGE_VARIABLE = "OBSSPEC_DOCKER_IMAGE"
"""Environment variable that names another image than the base image."""

LABEL = "obsspec_gym.image"
"""Label of every image that is handed to a daemon; its value is the image's name."""
_DEFINITION, _PLACE = f"{LABEL}.definition", f"{LABEL}.place"

_IMPORT_SECONDS = 600.0
_importing = threading.Lock()


def choose_image(daemon: Daemon, image: str | None) -> str:
    """The name of an image for the daemon: the given one, the one that the environment names, or our base image.

    The base image is handed to a daemon that does not have it, under a name that follows from its content: one that
    was built anew is another one. Where none is built on this machine, the daemon's will do.

    Raises:
        SandboxUnavailableError: If the base image is wanted, was not built, and the daemon does not have it.
        SandboxError: If the daemon does not take it.
    """
    if name := image or os.environ.get(IMAGE_VARIABLE):
        return name
    definition = find_definition("base")
    if not cached(definition.name).is_dir():
        return _found(daemon.api, definition) or str(image_tree(definition.name))  # which says how to build it
    name = _name(definition)
    with _importing:
        if not has_image(daemon, name):
            _import(daemon.api, definition, name)
    return name


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


def old_images(daemon: Daemon) -> list[str]:
    """Names of what was handed to the daemon from here, and has been built anew or otherwise defined since.

    What another machine or another user's cache handed to it is theirs.
    """
    definition = find_definition("base")
    if not cached(definition.name).is_dir():
        return []
    with telling("list images"):
        images = daemon.api.images(filters={"label": [f"{LABEL}={definition.name}", f"{_PLACE}={_place()}"]})
    names = [tag for image in images for tag in image.get("RepoTags") or [image["Id"]]]
    return [name for name in names if name != _name(definition)] if names else []


def remove_old_images(daemon: Daemon) -> list[str]:
    """Removes them, but for what containers are made of; returns what was removed."""
    removed = []
    for name in old_images(daemon):
        try:
            with telling("remove an image"):
                daemon.api.remove_image(name)
        except SandboxError as error:
            if not refused(error.__cause__):
                raise
        else:
            removed.append(name)
    return removed


def _name(definition: Definition) -> str:
    return f"obsspec-{definition.name}:{definition.digest}-{image_content(definition.name)}"


def _place() -> str:
    """Which cache of which machine."""
    return hashlib.sha256(f"{machine_id()}\0{cache_directory()}".encode()).hexdigest()[:16]


def _found(api: Any, definition: Definition) -> str | None:
    """The newest image of a definition that the daemon has, whoever built it."""
    with telling("list images"):
        images = api.images(filters={"label": [f"{LABEL}={definition.name}", f"{_DEFINITION}={definition.digest}"]})
    newest = max(images, key=lambda image: image["Created"], default=None)
    return newest and str(newest["Id"])


def _import(api: Any, definition: Definition, name: str) -> None:
    labels = {LABEL: definition.name, _DEFINITION: definition.digest, _PLACE: _place()}
    changes = [f"LABEL {label}={value}" for label, value in labels.items()]
    repository, _, tag = name.partition(":")
    before, api.timeout = api.timeout, _IMPORT_SECONDS
    try:
        with telling("take the base image"):
            api.import_image_from_file(str(image_tar(definition.name)), repository=repository, tag=tag, changes=changes)
    finally:
        api.timeout = before
