"""The machine a task needs: any sandbox, or one with an image of the task's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from obsspec_gym.envs.images import image_tree
from obsspec_gym.envs.sandbox import make_sandbox
from obsspec_gym.envs.sandbox.base import CommandResult, Sandbox
from obsspec_gym.envs.tasks.build_script import failure
from obsspec_gym.envs.tasks.task import Task
from obsspec_gym.errors import SandboxError, SandboxUnavailableError

_DISK_MIB = 2_048


@runtime_checkable
class Provisionable(Protocol):
    """A sandbox whose machine can be made before the agent's first command."""

    def provision(
        self,
        script: str,
        files: Mapping[str, str | bytes] | None = None,
        env: Mapping[str, str] | None = None,
        *,
        cwd: str = "/",
        timeout: float = 600.0,
    ) -> CommandResult:
        """Runs a script as root, with files under ``$BUILD``."""
        ...


def make_machine(kind: str, task: Task) -> Sandbox:
    """The sandbox that a task needs; starts nothing.

    Args:
        kind: Kind of sandbox.
        task: The task; with an image, the sandbox has our base image and the task's user, directory and environment.

    Raises:
        SandboxUnavailableError: If sandboxes of this kind have no image, or the base image is not there.
    """
    image = task.image
    if image is None:
        return make_sandbox(kind)
    options = {"user": image.user, "workdir": image.workdir, "env": image.env, "disk_mib": _DISK_MIB}
    if kind == "bubblewrap":
        return make_sandbox(kind, root=image_tree(), **options)
    if kind == "docker":
        return make_sandbox(kind, **options)
    raise SandboxUnavailableError(
        f"task {task.id} needs a machine of its own, which a {kind} sandbox is not: use bubblewrap or docker"
    )


def provision(sandbox: Sandbox, task: Task) -> None:
    """Makes a task's machine in a started sandbox, before the agent's first command; nothing without an image.

    Raises:
        SandboxError: If it cannot be made; says what is missing, where the build told.
    """
    image = task.image
    if image is None or not image.build:
        return
    if not isinstance(sandbox, Provisionable):
        raise SandboxError(f"task {task.id} needs a sandbox with an image, got {type(sandbox).__name__}")
    result = sandbox.provision(image.build, image.files, timeout=image.timeout)
    if result.exit_code == 0:
        return
    output = result.output.decode("utf-8", "replace")
    why = "it took too long" if result.exit_code is None else failure(output) or f"exit status {result.exit_code}"
    raise SandboxError(f"the machine of task {task.id} cannot be made: {why}")
