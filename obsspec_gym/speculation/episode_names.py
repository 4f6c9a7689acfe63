"""Naming the episodes of a Gymnasium environment, which has seeds and no names."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.seeding import derive_seed
from obsspec_gym.types import EpisodeId


class EpisodeNames:
    """Names episodes so that seeds depend on the user's seed and never on which environment finished first.

    The ``n``-th episode (from 0) since an environment was reset with seed ``s`` is ``EpisodeId("seed s", n)``; where
    ``info`` has a ``"task_id"``, that is the task and the sample is a number made of ``s`` and ``n``. Environments with
    the same seed, as in a group that tries one task several times, are different samples of it.

    Args:
        num_envs: How many environments there are.

    Example:
        >>> names = EpisodeNames(2)
        >>> names.reseed(7, [0, 1])
        >>> names.next(1, {}), names.next(1, {})
        (EpisodeId(task_id='seed 8', sample=0), EpisodeId(task_id='seed 8', sample=1))
    """

    def __init__(self, num_envs: int) -> None:
        root = secrets.randbits(31)
        self._seeds = [derive_seed("unseeded", root, i) for i in range(num_envs)]
        self._twins = [0] * num_envs
        self._counts = [0] * num_envs

    def reseed(self, seed: int | Sequence[int | None] | None, chosen: Sequence[int]) -> None:
        """Notes the seed of a reset.

        Args:
            seed: As it was passed to the vector environment.
            chosen: Which environments were reset.
        """
        own = {index: _seed_of(seed, index) for index in chosen}
        fresh = {index: int(number) for index, number in own.items() if number is not None}
        taken = {(self._seeds[i], self._twins[i]) for i in range(len(self._seeds)) if i not in fresh}
        for index, number in fresh.items():
            twin = 0
            while (number, twin) in taken:
                twin += 1
            taken.add((number, twin))
            self._seeds[index], self._twins[index], self._counts[index] = number, twin, 0

    def next(self, index: int, info: Mapping[str, Any]) -> EpisodeId:
        """The name of an environment's next episode.

        Args:
            index: Which environment.
            info: What its reset said.
        """
        seed, twin, count = self._seeds[index], self._twins[index], self._counts[index]
        self._counts[index] += 1
        task = info.get("task_id")
        if task is not None:
            parts = ("sample", seed, count, twin) if twin else ("sample", seed, count)
            return EpisodeId(str(task), derive_seed(*parts) % 2**31)
        return EpisodeId(f"seed {seed}", derive_seed("twin", twin, count) % 2**31 if twin else count)


def _seed_of(seed: int | Sequence[int | None] | None, index: int) -> int | None:
    if seed is None:
        return None
    if isinstance(seed, int | np.integer):
        return int(seed) + index
    if not index < len(seed):
        raise InvalidArgumentError(f"seeds must be one for each environment, got {len(seed)}")
    return seed[index]
