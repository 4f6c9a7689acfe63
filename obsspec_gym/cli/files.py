"""What is written: trajectories as they end, and results when all is done."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.speculation.trajectory import Trajectory


def output_directory(path: Path) -> Path:
    """Makes a directory, and tells before anything is started if nothing can be written there.

    Raises:
        InvalidArgumentError: If it cannot be made, or not be written to.
    """
    probe = path / ".writable"
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InvalidArgumentError(f"nothing can be written to {path}: {error.strerror}") from error
    return path


class TrajectoryFile:
    """One line of JSON for each trajectory, written as it ends: an interrupted run keeps what was finished.

    Args:
        path: Where to; replaced if it exists.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("w", encoding="utf-8")

    def write(self, trajectory: Trajectory) -> None:
        """Adds one."""
        self._file.write(json.dumps(trajectory.to_json(), ensure_ascii=False) + "\n")
        self._file.flush()

    def __enter__(self) -> TrajectoryFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()


def write_trajectories(trajectories: Iterable[Trajectory], path: Path) -> Path:
    """Writes all of them, in the order of the episodes."""
    with TrajectoryFile(path) as file:
        for trajectory in trajectories:
            file.write(trajectory)
    return path


def write_json(value: dict[str, Any], path: Path) -> Path:
    """Writes one object, for people too."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return path
