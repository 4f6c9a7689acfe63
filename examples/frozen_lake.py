"""A slow FrozenLake, a plain Python policy and two world models: the same trajectories, sooner."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import gymnasium as gym

from obsspec_gym import FixedSelector, History, ObsSpecVectorEnv, Off, Prediction, TabularWorldModel, ThreadVectorEnv

LAKE = "SFFF" "FHFH" "FFFH" "HFFG"  # fmt: skip
MOVES = ((0, -1), (1, 0), (0, 1), (-1, 0))  # left, down, right, up
STEP_SECONDS = THINKING_SECONDS = 0.04


class SlowLake(gym.Wrapper):
    """A lake whose steps take time, as tools do."""

    def step(self, action: Any) -> Any:
        time.sleep(STEP_SECONDS)
        return self.env.step(action)


def read_the_map(history: History, action: int) -> Prediction:
    """A world model that knows the map, so it knows where a move leads and whether that is the end."""
    row, column = divmod(int(history.value), 4)
    down, right = MOVES[action]
    cell = 4 * min(3, max(0, row + down)) + min(3, max(0, column + right))
    return Prediction(cell, ends=LAKE[cell] in "HG")


async def policy(history: History, seed: int) -> int:
    """Thinks for a while, then wanders about without stepping into a hole. All randomness comes from the seed."""
    await asyncio.sleep(THINKING_SECONDS)
    safe = [move for move in range(4) if LAKE[read_the_map(history, move).observation] != "H"]
    return safe[seed % len(safe)]


def wander(world_model: Any) -> tuple[list[Any], float]:
    """Forty steps of four lakes: what happened, and the seconds it took."""
    lakes = ThreadVectorEnv([lambda: SlowLake(gym.make("FrozenLake-v1", is_slippery=False))] * 4)
    envs = ObsSpecVectorEnv(lakes, policy, world_model, FixedSelector(1, 1) if world_model else Off())
    observations, _ = envs.reset(seed=0)
    started, trajectory = time.perf_counter(), [observations.tolist()]
    for _ in range(40):
        actions = envs.act()
        observations, rewards, *_ = envs.step(actions)
        trajectory.append((actions.tolist(), observations.tolist(), rewards.tolist()))
    envs.close()
    return trajectory, time.perf_counter() - started


if __name__ == "__main__":
    plain, before = wander(None)
    for world_model in (TabularWorldModel(), read_the_map):
        same, after = wander(world_model)
        saved = f"{before:.2f} s -> {after:.2f} s, {1 - after / before:.0%} saved"
        print(f"{saved}, trajectories equal: {same == plain}")
