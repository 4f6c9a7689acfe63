"""A text adventure of TextWorld's (pip install textworld): text, a list of commands in info, and memory.

The policy chooses among the commands that ``info`` lists: it is conditioned on these too, so they are ``visible``.
"""

import asyncio
import time
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium as gym
import textworld

from obsspec_gym import FixedSelector, History, MemoryWorldModel, ObsSpecEnv, TerminalText

STEP_SECONDS = THINKING_SECONDS = 0.03


class Adventure(gym.Env[str, str]):
    """One game as a Gymnasium environment."""

    observation_space = action_space = TerminalText()

    def __init__(self, game: str) -> None:
        self.game = textworld.start(game, textworld.EnvInfos(admissible_commands=True))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        state = self.game.reset()
        return state.feedback, {"commands": state.admissible_commands, "task_id": "adventure"}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        time.sleep(STEP_SECONDS)
        state, score, done = self.game.step(action)
        return state.feedback, float(score), done, False, {"commands": state.admissible_commands}


async def policy(history: History, seed: int) -> str:
    """Thinks for a while, then tries one of the last three commands of the list."""
    await asyncio.sleep(THINKING_SECONDS)
    return history.visible["commands"][-(seed % 3) - 1]


def play(game: str, world_model: Any) -> tuple[list[str], float]:
    """Twelve tries of six commands each: the transcript, and the seconds it took."""
    started, transcript = time.perf_counter(), []
    with ObsSpecEnv(Adventure(game), policy, world_model, FixedSelector(1, 1), visible=["commands"]) as env:
        for seed in range(12):
            transcript.append(env.reset(seed=seed)[0])
            for _ in range(6):
                transcript += [command := env.act(), env.step(command)[0]]
    return transcript, time.perf_counter() - started


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        options = textworld.GameOptions()
        options.seeds, options.path = 1, f"{folder}/game.z8"
        game, _ = textworld.make(options)
        (plain, before), (same, after) = play(game, None), play(game, MemoryWorldModel())
    print(f"{before:.2f} s -> {after:.2f} s, {1 - after / before:.0%} saved, trajectories equal: {same == plain}")
