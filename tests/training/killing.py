"""Trainings that are killed at random moments and go on each time."""

from __future__ import annotations

import itertools
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


def kill(words: Sequence[object], kills: int, random: Random) -> list[str]:
    """Runs the script ``kills`` times, and kills it each time.

    It lives for some of the events that it announces, and then for a part of a second. Every second time the event is
    the beginning of a save.

    Args:
        words: The script's arguments; it goes on each time from where it was.
        kills: How often.
        random: Draws the moments.

    Returns:
        The event after which each kill came.
    """
    moments = []
    for number in range(kills):
        kind = "saving" if number % 2 == 0 else ""
        moments.append(_killed(words, kind, lives=random.randrange(1, 4), delay=random.uniform(0, 0.1)))
    return moments


def _killed(words: Sequence[object], kind: str, lives: int, delay: float) -> str:
    command = [sys.executable, "-m", "tests.training.script", *map(str, words)]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env={**os.environ, **QUIET}
        ) as process,
    ):
        try:
            assert process.stdout is not None
            events = (line.strip() for line in process.stdout if line.startswith(kind))
            event = next(itertools.islice(events, lives - 1, None), None)
            time.sleep(delay)
            if event is None or process.poll() is not None:
                errors.seek(0)
                raise AssertionError(f"it was over before it was killed: {errors.read()[-5000:]}")
            return event
        finally:
            process.kill()


def same_weights(left: Path, right: Path) -> bool:
    """Whether two trainings ended with the same weights, bit for bit."""
    ours, theirs = (torch.load(path / "weights.pt", weights_only=True) for path in (left, right))
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
