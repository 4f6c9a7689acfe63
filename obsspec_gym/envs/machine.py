"""The machine a task needs: any sandbox, or one with an image of the task's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from obsspec_gym.envs.images import image_tree
from obsspec_gym.envs.sandbox import make_sandbox
from obsspec_gym.envs.sandbox.base import Sandbox
from obsspec_gym.envs.sandbox.cgroups import control_groups_available
from obsspec_gym.envs.sandbox.imaged import ImagedSandbox
from obsspec_gym.envs.tasks.build_script import failure
from obsspec_gym.envs.tasks.task import Image, Task
from obsspec_gym.errors import InvalidArgumentError, SandboxError, SandboxUnavailableError

_DISK_MIB = 2_048
_MEMORY_MIB = {"bubblewrap": 8_192, "docker": 2_048}
_THE_TASKS = frozenset({"root", "user", "workdir", "env"})


class MachineFactory(Protocol):
    """Makes a task's sandbox."""

    def check(self, task: Task) -> None:
        """Raises what making one would be refused with, before anything is started.

        Raises:
            InvalidArgumentError, SandboxUnavailableError: If it cannot be made.
        """
        ...

    def __call__(self, task: Task) -> Sandbox:
        """The sandbox of one episode; starts nothing."""
        ...


class Machines:
    """Sandboxes of one kind, each as its task needs it: with a machine of the task's own, or without.

    Stands wherever an environment expects ``sandbox=``. Where a task says what its machine has (CPUs, memory, disk),
    the sandbox is given that, and never more than the options allow; see :meth:`__call__`.

    Args:
        kind: Kind of sandbox.
        **options: Options of that kind, for all tasks; whose machine it is (``root``, ``user``, ``workdir``, ``env``)
            is for the task to say.

    Raises:
        InvalidArgumentError: For an unknown kind or option.

    Example:
        >>> machines = Machines("bubblewrap", disk_mib=64)
        >>> machines(Task("t", "Do nothing.")).workdir
        '/home/agent'
    """

    def __init__(self, kind: str = "bubblewrap", **options: Any) -> None:
        if given := sorted(_THE_TASKS & options.keys()):
            raise InvalidArgumentError(f"{given[0]} is for tasks to say: leave it out, or give a callable as sandbox")
        make_sandbox(kind, **options)  # what is wrong is told now; constructors start nothing
        self._kind = kind
        self._options = options

    def check(self, task: Task) -> None:
        """Raises what making a task's sandbox would be refused with.

        Raises:
            SandboxUnavailableError: If sandboxes of this kind have no image.
        """
        if task.image is not None and self._kind not in _MEMORY_MIB:
            raise SandboxUnavailableError(
                f"task {task.id} needs a machine of its own, which a {self._kind} sandbox is not: "
                "use bubblewrap or docker"
            )

    def __call__(self, task: Task) -> Sandbox:
        """The sandbox that a task needs; starts nothing.

        With an image, the sandbox has our base image and the task's user, directory and environment. Of what the image
        asks for it gets as much as the options allow, or else the kind's defaults: ``disk_mib`` (by default 2,048) of
        disk; in Docker ``memory_mib`` and ``cpus``; in bubblewrap, whose files are in memory, ``total_mib`` of memory
        and disk together where control groups can be had, and otherwise ``memory_mib`` for each process.

        Raises:
            SandboxUnavailableError: If sandboxes of this kind have no image, or the base image is not there.
        """
        self.check(task)
        image = task.image
        if image is None:
            return make_sandbox(self._kind, **self._options)
        options = {**self._options, **_bounded(self._kind, image, self._options)}
        options |= {"user": image.user, "workdir": image.workdir, "env": image.env}
        if self._kind == "bubblewrap":
            options["root"] = image_tree()
        return make_sandbox(self._kind, **options)


class AnySandbox:
    """What a callable makes that knows nothing of tasks, for tasks that need nothing of a machine.

    Args:
        make: Makes a sandbox.
    """

    def __init__(self, make: Callable[[], Sandbox]) -> None:
        self._make = make

    def check(self, task: Task) -> None:
        """Refuses a task with a machine of its own: it would be played on another one.

        Raises:
            InvalidArgumentError: If it has one.
        """
        if task.image is not None:
            raise InvalidArgumentError(
                f"task {task.id} needs a machine of its own, which a callable does not know of: give sandbox as the "
                'name of a kind, or as Machines("docker", ...)'
            )

    def __call__(self, task: Task) -> Sandbox:
        """What the callable makes.

        Raises:
            InvalidArgumentError: As :meth:`check`.
        """
        self.check(task)
        return self._make()


def provision(sandbox: Sandbox, task: Task) -> None:
    """Makes a task's machine in a started sandbox, before the agent's first command; nothing without an image.

    Raises:
        SandboxError: If it cannot be made; says what is missing, where the build told.
    """
    image = task.image
    if image is None or not image.build:
        return
    if not isinstance(sandbox, ImagedSandbox):
        raise SandboxError(f"task {task.id} needs a sandbox with an image, got {type(sandbox).__name__}")
    result = sandbox.provision(image.build, image.files, timeout=image.timeout)
    if result.exit_code == 0:
        return
    output = result.output.decode("utf-8", "replace")
    why = "it took too long" if result.exit_code is None else failure(output) or f"exit status {result.exit_code}"
    raise SandboxError(f"the machine of task {task.id} cannot be made: {why}")


def _bounded(kind: str, image: Image, allowed: Mapping[str, Any]) -> dict[str, Any]:
    """What a task's machine gets of what it asks for, as options of the kind."""
    disk = _least(image.disk_mib, allowed.get("disk_mib", _DISK_MIB))
    bounds: dict[str, Any] = {"disk_mib": disk}
    memory = _least(image.memory_mib, allowed.get("memory_mib", _MEMORY_MIB[kind]))
    if kind == "docker":
        return bounds | {"memory_mib": memory, "cpus": _least(image.cpus, allowed.get("cpus"))}
    if image.memory_mib is None:
        return bounds
    if control_groups_available() is not None:
        return bounds | {"memory_mib": memory}
    # Files are in memory, too.
    return bounds | {"total_mib": _least(image.memory_mib + disk, allowed.get("total_mib"))}


def _least(wanted: float | None, allowed: float | None) -> Any:
    """The smaller of two bounds; None for no bound."""
    return min((bound for bound in (wanted, allowed) if bound is not None), default=None)
