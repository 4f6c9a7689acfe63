"""Checkpoints that are whole or not there, and the state of what learns beside the policy.

A checkpoint is written beside its place, synced to the disk, and renamed: whoever looks sees a whole one or none. It
names its files and their sizes, so one that was copied or deleted half-way is not taken for whole either.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from obsspec_gym.agents.history import History, Turn
from obsspec_gym.agents.world_model.cascade import Checkpointable
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.types import Completion, EpisodeId, FinishReason, MalformedCall, Outcome, Prediction, Transition

logger = logging.getLogger(__name__)

_UNFINISHED = ".unfinished"
_MANIFEST = "manifest.json"
_NAME = re.compile(r"checkpoint-(\d+)")
_VALUES = (Completion, EpisodeId, FinishReason, History, MalformedCall, Outcome, Prediction, Transition, Turn)


def begin(folder: Path, name: str) -> Path:
    """Where to write a checkpoint: an empty directory, beside its place.

    What an earlier process left unfinished there is removed.

    Args:
        folder: Where checkpoints go.
        name: The checkpoint's.
    """
    abandon(folder)
    unfinished = folder / _UNFINISHED / name
    unfinished.mkdir(parents=True)
    return unfinished


def publish(unfinished: Path) -> Path:
    """Moves a checkpoint to its place, all at once and whatever happens; one of the same name there is replaced.

    Args:
        unfinished: What :func:`begin` gave, with everything written.

    Returns:
        The checkpoint.
    """
    folder = unfinished.parent.parent
    files = sorted(path for path in unfinished.rglob("*") if path.is_file())
    sizes = {str(path.relative_to(unfinished)): path.stat().st_size for path in files}
    manifest = unfinished / _MANIFEST
    manifest.write_text(json.dumps(sizes, indent=0), encoding="utf-8")
    for path in [*files, manifest, *(p for p in unfinished.rglob("*") if p.is_dir()), unfinished]:
        _sync(path)
    place = folder / unfinished.name
    if place.exists():
        _discard(place)
    unfinished.rename(place)
    _sync(folder)
    abandon(folder)
    return place


def abandon(folder: Path) -> None:
    """Removes what is unfinished."""
    shutil.rmtree(folder / _UNFINISHED, ignore_errors=True)


def unfinished_in(folder: Path) -> Path:
    """Where checkpoints are while they are written."""
    return folder / _UNFINISHED


def is_whole(checkpoint: Path) -> bool:
    """Whether everything that was written is there."""
    try:
        sizes = json.loads((checkpoint / _MANIFEST).read_text(encoding="utf-8"))
        return all((checkpoint / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return False


def last_checkpoint(folder: str | Path) -> Path | None:
    """The newest whole checkpoint of a training, to go on from.

    Args:
        folder: The training's output directory.

    Example:
        >>> last_checkpoint("/nowhere") is None
        True
    """
    return next(filter(is_whole, reversed(_checkpoints(Path(folder)))), None)


def keep_newest(folder: Path, limit: int | None, best: str | None) -> None:
    """Removes the oldest checkpoints; the newest and the best stay.

    Args:
        folder: Where they are.
        limit: How many to keep; ``None`` or 0 for all.
        best: The path of the best.
    """
    checkpoints = _checkpoints(folder)
    if not limit:
        return
    removable = [path for path in checkpoints[:-1] if best is None or path != Path(best)]
    for path in removable[: max(0, len(checkpoints) - limit)]:
        _discard(path)
    abandon(folder)


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """Writes state: plain containers, tensors, and the values of ``obsspec_gym.types``."""
    torch.save(dict(state), path)


def load_state(path: Path) -> dict[str, Any]:
    """Reads it again; a file with anything else in it is refused, and nothing of it is executed.

    Raises:
        InvalidArgumentError: If it cannot be read.
    """
    try:
        with torch.serialization.safe_globals(list(_VALUES)):
            state: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # torch raises whatever the damage leads to
        raise InvalidArgumentError(f"{path} cannot be read: {error}") from error
    return state


def states_of(learners: Mapping[str, Checkpointable]) -> dict[str, Any]:
    """The state of each, by name."""
    return {name: learner.state_dict() for name, learner in learners.items()}


def restore(learners: Mapping[str, Checkpointable], states: Mapping[str, Any]) -> None:
    """Gives each its state back; says what has none, and what is not there any more."""
    for name, learner in learners.items():
        if name in states:
            learner.load_state_dict(states[name])
        else:
            logger.warning("the checkpoint holds no state of %s, which starts anew", name)
    for name in states.keys() - learners.keys():
        logger.warning("the checkpoint holds the state of %s, which is not part of this run", name)


def named(learners: Iterable[object]) -> dict[str, Checkpointable]:
    """Those of them that have a state, by a name that is the same in a continued run: their type and place."""
    found: dict[str, Checkpointable] = {}
    for learner in learners:
        if isinstance(learner, Checkpointable):
            kind = type(learner).__name__
            count = sum(name.split("#")[0] == kind for name in found)
            found[f"{kind}#{count}" if count else kind] = learner
    return found


def _checkpoints(folder: Path) -> list[Path]:
    """Oldest first."""
    found = {int(match[1]): path for path in folder.glob("checkpoint-*") if (match := _NAME.fullmatch(path.name))}
    return [found[step] for step in sorted(found)]


def _discard(checkpoint: Path) -> None:
    """Removes one, so that it is gone at once."""
    doomed = checkpoint.parent / _UNFINISHED / f"removed-{checkpoint.name}"
    doomed.parent.mkdir(exist_ok=True)
    checkpoint.rename(doomed)
    shutil.rmtree(doomed)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
