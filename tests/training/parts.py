"""A suite small enough that a model learns its language in a second, and environments that break on request."""

from __future__ import annotations

from random import Random
from typing import Any

import gymnasium as gym

from obsspec_gym.envs.tasks.task import Expert, Task
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.seeding import derive_seed
from obsspec_gym.spaces import TerminalText
from obsspec_gym.types import MalformedCall

TURNS = 3


class DigitSuite:
    """Task ``i`` asks for the digit in a file; ``cat`` shows it, ``submit DIGIT`` hands it in."""

    name = "digits"

    def __len__(self) -> int:
        return 1000

    def task(self, index: int) -> Task:
        if not 0 <= index < len(self):
            raise InvalidArgumentError(f"index must be in [0, {len(self)}), got {index}")
        digit = digit_of(index)
        return Task(
            id=f"digits/{index}",
            instruction="Which digit?",
            files={"n": f"{digit}\n"},
            answer=digit,
            verifier=f'test "$ANSWER" = {digit}',
            max_turns=TURNS,
        )

    def expert(self, task: Task) -> Expert:
        observation = yield "cat n"
        yield f"submit {observation[0]}"


def digit_of(index: int) -> str:
    return "123"[derive_seed("digit", index) % 3]


def dialogue(random: Random) -> str:
    """An episode of an agent that knows what to do, and then hands in any digit."""
    shown, answer = random.choice("123"), random.choice("123")
    return (
        f"<|task|>Which digit?<|act|>cat n<|end|><|obs|>{shown}\n[exit 0] ~<|act|>submit {answer}<|end|>"
        "<|obs|>[submitted]<|end|>"
    )


class DigitEnv(gym.Env[str, str]):
    """The same tasks without a terminal behind them: it knows three commands, and costs nothing."""

    observation_space = TerminalText()
    action_space = TerminalText()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self.task: Task = (options or {})["task"]
        self.turn = 0
        return self.task.instruction, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.turn += 1
        command, _, answer = action.partition(" ")
        if isinstance(action, MalformedCall):
            return "[not run]", 0.0, False, self.turn == TURNS, {}
        if command == "submit":
            return "[submitted]", float(answer == self.task.answer), True, False, {}
        shown = self.task.answer if action == "cat n" else "no such command"
        return f"{shown}\n[exit 0] ~", 0.0, False, self.turn == TURNS, {}


class Breaking(gym.Wrapper[str, str, str, str]):
    """Raises for the samples in ``steps`` (at their first step) and ``resets``."""

    def __init__(self, env: gym.Env[str, str], steps: tuple[int, ...] = (), resets: tuple[int, ...] = ()) -> None:
        super().__init__(env)
        self.steps, self.resets = steps, resets
        self.sample = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self.sample = (options or {})["sample"]
        if self.sample in self.resets:
            raise OSError("no sandbox today")
        return self.env.reset(seed=seed, options=options)

    def step(self, action: str) -> Any:
        if self.sample in self.steps:
            raise OSError("the sandbox is gone")
        return self.env.step(action)
