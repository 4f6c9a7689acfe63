"""Trainings that are killed at random moments and go on each time, until one comes to its end."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

import torch

from tests.training.distributed import QUIET


def survive(words: Sequence[object], kills: int, random: Random) -> list[str]:
    """Runs the script until it is done, and kills it ``kills`` times on the way.

    Each time it lives for some of the events that it announces, and then for a part of a second. Every second time
    the event is the beginning of a save.

    Args:
        words: The script's arguments.
        kills: How often it is killed, with SIGKILL.
        random: Draws the moments.

    Returns:
        The event after which each kill came.
    """
    moments = []
    for number in range(kills):
        kind = "saving" if number % 2 == 0 else ""
        moment = _run(words, kind, lives=random.randrange(1, 4), delay=random.uniform(0, 0.1))
        assert moment is not None, "it was done before it was killed"
        moments.append(moment)
    assert _run(words) is None
    return moments


def _run(words: Sequence[object], kind: str = "", lives: int | None = None, delay: float = 0) -> str | None:
    """The event after which it was killed; ``None`` if it was not."""
    command = [sys.executable, "-m", "tests.training.script", *map(str, words)]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env={**os.environ, **QUIET}
        ) as process,
    ):
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if lives is not None and line.startswith(kind):
                    lives -= 1
                    if lives == 0:
                        time.sleep(delay)
                        return line.strip() if process.poll() is None else None
            if process.wait() != 0:
                errors.seek(0)
                raise AssertionError(errors.read()[-5000:])
            return None
        finally:
            process.kill()


def same_weights(left: Path, right: Path) -> bool:
    """Whether two trainings ended with the same weights, bit for bit."""
    ours, theirs = (torch.load(path / "weights.pt", weights_only=True) for path in (left, right))
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
