"""Gymnasium's vector contracts, written out once more in the plainest way, for counting environments.

A vector environment batches: observations by space, rewards as float64, ends as bool. Every entry of an environment's
``info`` becomes an array beside a mask ``_entry`` that says which environments have it. What follows the end of an
episode depends on the autoreset mode:

- NEXT_STEP: the next step ignores its action and returns the first observation of a new episode, reward 0.
- SAME_STEP: the very step returns the first observation of a new episode; the last one is ``final_obs[i]``, and the
  last info is part ``i`` of ``final_info``.
- DISABLED: nothing, until ``reset`` is called with a mask of those to be reset; the others keep their observation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from tests.conformance.worlds import Counting

KEYS = {"action_mask": ((3,), np.int8), "offset": ((), np.int64)}


class Expected:
    """What a vector of counting environments has to return."""

    def __init__(self, mode: AutoresetMode, lengths: Sequence[int]) -> None:
        self.mode = mode
        self.envs = [Counting(length) for length in lengths]
        self.seen: list[Any] = [None] * len(lengths)
        self.over = [False] * len(lengths)

    def reset(self, seeds: Sequence[int | None], mask: Sequence[bool] | None = None) -> tuple[Any, dict[str, Any]]:
        infos: list[Any] = [None] * len(self.envs)
        for index, env in enumerate(self.envs):
            if mask is None or mask[index]:
                self.seen[index], infos[index] = env.reset(seed=seeds[index])
                self.over[index] = False
        return batch(self.seen), entries(infos)

    def step(self, actions: Sequence[int]) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        n = len(self.envs)
        rewards, terminated, truncated = np.zeros(n), np.zeros(n, bool), np.zeros(n, bool)
        infos: list[Any] = [None] * n
        final_obs, final_infos = np.full(n, None, dtype=object), [None] * n
        for i, env in enumerate(self.envs):
            if self.over[i] and self.mode is AutoresetMode.NEXT_STEP:
                self.seen[i], infos[i] = env.reset()
                self.over[i] = False
                continue
            self.seen[i], rewards[i], terminated[i], truncated[i], infos[i] = env.step(actions[i])
            self.over[i] = bool(terminated[i] or truncated[i])
            if self.over[i] and self.mode is AutoresetMode.SAME_STEP:
                final_obs[i], final_infos[i] = self.seen[i], infos[i]
                self.seen[i], infos[i] = env.reset()
        merged = entries(infos)
        if any(info is not None for info in final_infos):
            there = np.array([info is not None for info in final_infos])
            merged |= {"final_obs": final_obs, "_final_obs": there}
            merged |= {"final_info": entries(final_infos), "_final_info": there}
        return batch(self.seen), rewards, terminated, truncated, merged


def batch(seen: Sequence[Any]) -> dict[str, Any]:
    """Observations side by side, each part with its space's dtype."""
    return {
        "count": np.array([each["count"] for each in seen], dtype=np.int64),
        "place": np.array([each["place"] for each in seen], dtype=np.float32),
        "inner": {
            "flags": np.array([each["inner"]["flags"] for each in seen], dtype=np.int8),
            "picture": np.array([each["inner"]["picture"] for each in seen], dtype=np.uint8),
        },
        "pair": (
            np.array([each["pair"][0] for each in seen], dtype=np.int64),
            np.array([each["pair"][1] for each in seen], dtype=np.float64),
        ),
    }


def entries(infos: Sequence[dict[str, Any] | None]) -> dict[str, Any]:
    """Infos by entry, with their masks; ``None`` for an environment that says nothing."""
    merged: dict[str, Any] = {}
    for key, (shape, dtype) in KEYS.items():
        values = np.zeros((len(infos), *shape), dtype=dtype)
        there = np.array([info is not None for info in infos])
        for index, info in enumerate(infos):
            if info is not None:
                values[index] = info[key]
        merged |= {key: values, f"_{key}": there}
    return merged
