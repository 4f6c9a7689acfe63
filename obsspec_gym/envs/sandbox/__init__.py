"""Places where an agent's commands run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from obsspec_gym.envs.sandbox.base import CommandResult, Sandbox
from obsspec_gym.errors import InvalidArgumentError

__all__ = ["KINDS", "CommandResult", "Sandbox", "make_sandbox"]

KINDS = ("bubblewrap", "docker", "local")
"""The kinds of sandbox that :func:`make_sandbox` knows."""


def make_sandbox(kind: str = "bubblewrap", **options: Any) -> Sandbox:
    """Makes a sandbox; starts nothing.

    Args:
        kind: One of :data:`KINDS`.
        **options: Keyword arguments of the kind's class.

    Raises:
        InvalidArgumentError: For an unknown kind or option.

    Example:
        >>> make_sandbox("bubblewrap", disk_mib=64).workdir
        '/home/agent'
    """
    from obsspec_gym.envs.sandbox.bubblewrap import BubblewrapSandbox
    from obsspec_gym.envs.sandbox.docker import DockerSandbox
    from obsspec_gym.envs.sandbox.local import LocalSandbox

    classes: Mapping[str, Callable[..., Sandbox]] = {
        "bubblewrap": BubblewrapSandbox,
        "docker": DockerSandbox,
        "local": LocalSandbox,
    }
    if kind not in classes:
        raise InvalidArgumentError(f"unknown kind of sandbox {kind!r}: expected one of {', '.join(KINDS)}")
    try:
        return classes[kind](**options)
    except TypeError as error:
        raise InvalidArgumentError(f"a {kind} sandbox does not take these options: {error}") from None
