"""Harbor task directories as a suite."""

from __future__ import annotations

import base64
import hashlib
import io
import math
import re
import shlex
import tarfile
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from obsspec_gym.envs.tasks.dockerfile import DockerfileError
from obsspec_gym.envs.tasks.harbor_grading import looks_at_system, verifier
from obsspec_gym.envs.tasks.image import read_image
from obsspec_gym.envs.tasks.task import Expert, Task
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.types import SUBMIT

_SECONDS = 600.0  # Harbor's default for each of its timeouts
_COMMAND_SECONDS = 60.0
_PLACES = "\nmkdir -p /tests /logs/verifier /logs/agent && chmod 777 /tests /logs/verifier /logs/agent || exit 1\n"


class HarborSuite:
    """The Harbor tasks in a directory, in the order of their names.

    A task is a directory with ``task.toml``, ``instruction.md``, ``environment/Dockerfile`` (read by
    :func:`~obsspec_gym.envs.tasks.image.read_image`), ``tests/`` and, for the expert, ``solution/solve.sh``. Its
    tests reach the sandbox only for grading, under ``/tests``. They are run by ``tests/test.sh``, which writes the
    reward to :data:`~obsspec_gym.envs.tasks.harbor_grading.REWARDS` or else ends with an exit status; but sandboxes
    have no network, so where ``test.sh`` calls a program that fetches something (curl, uvx, apt-get install and their
    like), pytest runs ``tests/test_*.py`` instead and its exit status is the reward. Where neither the instruction nor
    a test is about the system's own places (:func:`~obsspec_gym.envs.tasks.harbor_grading.looks_at_system`), tests
    find these as they were built (:attr:`Task.as_built`), so that an agent that is root cannot have replaced what they
    run; elsewhere they find what the agent left there.

    ``[verifier] timeout_sec`` and ``[environment] build_timeout_sec`` hold; ``[agent] timeout_sec`` bounds the seconds
    of an episode's commands together. Of ``[environment]``, ``cpus``, ``memory_mb`` (or ``memory = "2G"``) and
    ``storage_mb`` (``storage``) bound the machine, as far as the sandbox can
    (:class:`~obsspec_gym.envs.machine.Machines`).

    Args:
        path: The directory, or one task's.

    Raises:
        InvalidArgumentError: If there is no task.

    Example:
        >>> suite = HarborSuite("tasks")  # doctest: +SKIP
        >>> suite.task(0).id  # doctest: +SKIP
        'harbor/hello-world@5f0c3a81'
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        if not self._path.is_dir():
            raise InvalidArgumentError(f"expected a directory of Harbor tasks, got {str(path)!r}")
        tasks = (found.parent for found in self._path.glob("*/task.toml"))
        self._tasks = [self._path] if (self._path / "task.toml").is_file() else sorted(tasks)
        if not self._tasks:
            raise InvalidArgumentError(f"there is no Harbor task (a directory with a task.toml) in {str(path)!r}")

    @property
    def name(self) -> str:
        """``harbor:PATH``."""
        return f"harbor:{self._path}"

    def __len__(self) -> int:
        """How many task directories there are."""
        return len(self._tasks)

    def task(self, index: int) -> Task:
        """The ``index``-th task.

        Raises:
            InvalidArgumentError: If the index is out of range, or the directory asks for what is not supported.
        """
        if not 0 <= index < len(self):
            raise InvalidArgumentError(f"a task index is in [0, {len(self)}), got {index}")
        return read_task(self._tasks[index])

    def expert(self, task: Task) -> Expert:
        """Runs ``solution/solve.sh`` and submits.

        Raises:
            InvalidArgumentError: If the task is not of this suite or has no solution.
        """
        for directory in self._tasks:
            if task.id.startswith(f"harbor/{directory.resolve().name}@") and task.id == _id(directory):
                if not (directory / "solution" / "solve.sh").is_file():
                    raise InvalidArgumentError(f"task {task.id} has no solution/solve.sh")
                return _solve(directory / "solution")
        raise InvalidArgumentError(f"task {task.id!r} is not one of {self.name}")


def read_task(directory: Path) -> Task:
    """The task of a Harbor directory.

    Raises:
        InvalidArgumentError: If a part is missing, cannot be read, or asks for what is not supported.
    """
    name = f"harbor/{directory.resolve().name}"
    settings = _settings(directory / "task.toml", name)
    environment = directory / "environment"
    tests = {f"tests/{path}": content for path, content in _files(directory / "tests").items()}
    if not tests:
        raise InvalidArgumentError(f"task {name} has no tests")
    build_seconds = _seconds(settings, "environment", "build_timeout_sec", name)
    limits = _limits(settings.get("environment", {}), name)
    try:
        image = read_image(_text(environment / "Dockerfile", name), environment, timeout=build_seconds)
    except DockerfileError as error:
        raise InvalidArgumentError(f"task {name} cannot be built: environment/Dockerfile {error}") from None
    script, rewards = verifier(tests)
    instruction = _text(directory / "instruction.md", name).strip()
    texts = [instruction, *(content.decode("utf-8", "replace") for content in tests.values())]
    return Task(
        id=_id(directory),
        instruction=instruction,
        verifier=script,
        verifier_files=tests,
        timeout=_COMMAND_SECONDS,
        image=replace(image, build=image.build + _PLACES, **limits),
        rewards=rewards,
        verifier_timeout=_seconds(settings, "verifier", "timeout_sec", name),
        time_limit=_seconds(settings, "agent", "timeout_sec", name),
        as_built=not any(map(looks_at_system, texts)),
    )


def _id(directory: Path) -> str:
    """The directory's name, and what tells it from others of that name: a digest of what makes the task."""
    digest = hashlib.sha256()
    for path, content in _files(directory).items():
        if path.startswith("solution/"):
            continue
        digest.update(f"{len(path)} {path} {len(content)} ".encode("utf-8", "surrogateescape") + content)
    return f"harbor/{directory.resolve().name}@{digest.hexdigest()[:8]}"


def _settings(path: Path, name: str) -> dict[str, Any]:
    try:
        return tomllib.loads(_text(path, name))
    except tomllib.TOMLDecodeError as error:
        raise InvalidArgumentError(f"the task.toml of task {name} cannot be read: {error}") from None


def _seconds(settings: Mapping[str, Any], section: str, key: str, name: str) -> float:
    value = settings.get(section, {}).get(key, _SECONDS)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise InvalidArgumentError(f"[{section}] {key} of task {name} must be a positive number, got {value!r}")
    return float(value)


def _limits(environment: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What the machine may use, as fields of an image; only what the task says."""
    limits: dict[str, Any] = {}
    if "cpus" in environment:
        limits["cpus"] = _positive(environment["cpus"], "cpus", name)
    for field, key in (("memory_mib", "memory"), ("disk_mib", "storage")):
        if (mib := f"{key}_mb") in environment:
            limits[field] = max(1, round(_positive(environment[mib], mib, name)))
        elif key in environment:
            limits[field] = _size(environment[key], key, name)
    return limits


def _size(value: object, key: str, name: str) -> int:
    """MiB of a size such as ``2G``."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?\s*", str(value), re.IGNORECASE)
    if found is None or not float(found[1]) > 0:
        raise InvalidArgumentError(f'[environment] {key} of task {name} must be a size such as "2G", got {value!r}')
    return max(1, round(float(found[1]) * 1024.0 ** ("KMGT".index(found[2].upper()) - 1 if found[2] else -2)))


def _positive(value: object, key: str, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise InvalidArgumentError(f"[environment] {key} of task {name} must be a positive number, got {value!r}")
    return float(value)


def _text(path: Path, name: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"task {name}: {path.parent.name}/{path.name} cannot be read: {error}") from None


def _files(directory: Path) -> dict[str, bytes]:
    """Relative path to content of every file below a directory."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in files}


def _solve(solution: Path) -> Expert:
    files = _files(solution)
    script = files["solve.sh"].decode("utf-8", "replace")
    if len(files) == 1 and script.encode("utf-8") == files["solve.sh"] and "\0" not in script:
        yield f"bash -c {shlex.quote(script)}"
    else:
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w:gz") as tar:
            tar.add(solution, ".")
        packed = base64.b64encode(archive.getvalue()).decode()
        unpack = f'echo {packed} | base64 -d | tar -xz -C "$solution"'
        yield f'solution=$(mktemp -d) && {unpack} && bash "$solution/solve.sh"'
    yield SUBMIT
