"""What the wrapper itself costs: a step with speculation off beside the bare environment's, in one run.

The environments answer at once, so all that is left is our own work. Two kinds: environments stepped all at once
(``SyncVectorEnv``) and environments on a thread each (``ThreadVectorEnv``, what terminals run on).
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorEnv

from obsspec_gym.envs.threads import ThreadVectorEnv
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.speculation.metrics import Spread
from obsspec_gym.speculation.selector import Off
from obsspec_gym.speculation.wrapper import ObsSpecVectorEnv

DEFAULTS: dict[str, Any] = {"envs": 8, "steps": 300, "repeats": 5}
FULL: dict[str, Any] = {"steps": 2000, "repeats": 9}

_IMPORT = """
import sys, time
started = time.perf_counter()
import obsspec_gym
print(time.perf_counter() - started, "torch" in sys.modules)
"""


class _Instant(gym.Env[np.int64, np.int64]):
    """Answers at once and never ends."""

    observation_space = gym.spaces.Discrete(2)
    action_space = gym.spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.int64, dict[str, Any]]:
        """Observation 0."""
        super().reset(seed=seed)
        return np.int64(0), {}

    def step(self, action: np.int64) -> tuple[np.int64, float, bool, bool, dict[str, Any]]:
        """Observes the action."""
        return action, 0.0, False, False, {}


def run(*, envs: int, steps: int, repeats: int, report: Any) -> dict[str, Any]:
    """Medians over interleaved repeats.

    Returns:
        ``added_milliseconds_per_env`` for both kinds (wrapped minus bare, per environment and step), the bare times
        beside them, and what ``import obsspec_gym`` takes (best of 3) and whether it brings torch.
    """
    if envs < 1 or steps < 1 or repeats < 1:
        raise InvalidArgumentError(f"envs, steps and repeats must be >= 1, got {envs}, {steps} and {repeats}")
    result: dict[str, Any] = {"envs": envs, "steps": steps}
    kinds: dict[str, Callable[[], VectorEnv[Any, Any, Any]]] = {
        "sync": lambda: SyncVectorEnv([_Instant] * envs),
        "threads": lambda: ThreadVectorEnv([_Instant] * envs),
    }
    for kind, make in kinds.items():
        bare: list[float] = []
        wrapped: list[float] = []
        for repeat in range(repeats):
            bare.append(_step_seconds(make(), steps))
            wrapped.append(_step_seconds(ObsSpecVectorEnv(make(), lambda history, seed: seed % 2, None, Off()), steps))
            report(f"{kind}: repeat {repeat + 1} of {repeats}")
        added = [1e3 * (with_it - without) / envs for with_it, without in zip(wrapped, bare, strict=True)]
        result[kind] = {
            "added_milliseconds_per_env": asdict(Spread.of(added)),
            "bare_milliseconds_per_step": asdict(Spread.of([1e3 * seconds for seconds in bare])),
        }
    result["import_seconds"], result["import_brings_torch"] = _import_cost()
    return result


def _step_seconds(envs: VectorEnv[Any, Any, Any], steps: int) -> float:
    """Mean seconds of a step, the waiting for the policy's own actions not counted."""
    try:
        envs.reset(seed=0)
        spent = 0.0
        for _ in range(steps):
            actions = envs.act() if isinstance(envs, ObsSpecVectorEnv) else np.ones(envs.num_envs, dtype=np.int64)
            started = time.perf_counter()
            envs.step(actions)
            spent += time.perf_counter() - started
        return spent / steps
    finally:
        envs.close()


def _import_cost() -> tuple[float, bool]:
    seconds, torch = [], False
    for _ in range(4):  # the first one warms the caches
        output = subprocess.run([sys.executable, "-c", _IMPORT], capture_output=True, text=True, check=True).stdout
        first, second = output.split()
        seconds.append(float(first))
        torch |= second == "True"
    return min(seconds[1:]), torch
