"""What a training logs, as lines of JSON: one for every entry of the trainer's log history."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from obsspec_gym.errors import InvalidArgumentError

LOG = "log.jsonl"
"""The name of the file in a training's output directory."""

Entry = dict[str, Any]


class LogFile(TrainerCallback):
    """Writes every entry as it is logged, with ``seconds``: wall seconds since this process began to train.

    A continued training keeps the entries up to the step that it goes on from.

    Args:
        path: Where to.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._started = 0.0
        self._earlier = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Drops what came after the step that training goes on from."""
        self._started = time.perf_counter()
        if not state.is_world_process_zero:
            return
        kept = [entry for entry in _read(self._path) if entry["step"] <= state.global_step] if state.global_step else []
        self._earlier = max((entry["seconds"] for entry in kept), default=0.0)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text("".join(_line(entry) for entry in kept), encoding="utf-8")

    def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Adds the newest entry."""
        if not state.is_world_process_zero or not self._started:
            return
        entry = {**state.log_history[-1], "seconds": self._earlier + time.perf_counter() - self._started}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(_line(entry))


def read_log(path: Path) -> list[Entry]:
    """Every entry of a training's log.

    Args:
        path: The file, or the training's output directory.

    Raises:
        InvalidArgumentError: If there is none.
    """
    path = path / LOG if path.is_dir() else path
    if not path.is_file():
        raise InvalidArgumentError(f"{path} is no log of a training")
    return _read(path)


def series(entries: Sequence[Entry], name: str) -> tuple[list[int], list[float]]:
    """Steps and values of one measure, where it was logged."""
    found = [(entry["step"], float(entry[name])) for entry in entries if entry.get(name) is not None]
    return [step for step, _ in found], [value for _, value in found]


def _read(path: Path) -> list[Entry]:
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.endswith("}")]


def _line(entry: Entry) -> str:
    return json.dumps(entry, ensure_ascii=False) + "\n"
