"""A slow cart and pole (float observations) and its fast digital twin as world model: one environment, ObsSpecEnv."""

import asyncio
import threading
import time
from typing import Any

import gymnasium as gym

from obsspec_gym import FixedSelector, History, ObsSpecEnv, Off, Prediction

STEP_SECONDS = THINKING_SECONDS = 0.03


class SlowCart(gym.Wrapper):
    """A cart whose steps take time, as those of a real one do."""

    def step(self, action: Any) -> Any:
        time.sleep(STEP_SECONDS)
        return self.env.step(action)


TWIN, ONE_AT_A_TIME = gym.make("CartPole-v1", max_episode_steps=60), threading.Lock()


def twin(history: History, action: int) -> Prediction:
    """Plays the episode so far once more, from its seed, and one step further: exact to the last bit."""
    with ONE_AT_A_TIME:
        TWIN.reset(seed=int(history.episode.task_id.removeprefix("seed ")))
        for turn in history.turns:
            TWIN.step(turn.action)
        observation, _, terminated, truncated, _ = TWIN.step(action)
    return Prediction(observation, ends=terminated or truncated)


async def policy(history: History, seed: int) -> int:
    """Thinks for a while, then pushes the cart to the side the pole is falling to."""
    await asyncio.sleep(THINKING_SECONDS)
    return int(history.value[2] + 0.5 * history.value[3] > 0)


def balance(world_model: Any) -> tuple[list[Any], float]:
    """One episode: what happened, and the seconds it took."""
    cart = SlowCart(gym.make("CartPole-v1", max_episode_steps=60))
    env = ObsSpecEnv(cart, policy, world_model, FixedSelector(1, 1) if world_model else Off())
    observation, _ = env.reset(seed=1)
    started, trajectory, terminated, truncated = time.perf_counter(), [observation.tobytes()], False, False
    while not (terminated or truncated):
        action = env.act()
        observation, reward, terminated, truncated, _ = env.step(action)
        trajectory.append((int(action), observation.tobytes(), reward))
    env.close()
    return trajectory, time.perf_counter() - started


if __name__ == "__main__":
    (plain, before), (same, after) = balance(None), balance(twin)
    print(f"{before:.2f} s -> {after:.2f} s, {1 - after / before:.0%} saved, trajectories equal: {same == plain}")
