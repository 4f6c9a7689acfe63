"""Simulated environments: outcomes and tool times as pure functions of names, on whatever clock the loop has."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from obsspec_gym.agents.history import History
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.speculation.slot import Episode, StepResult
from obsspec_gym.types import Action, EpisodeId, Observation, Outcome

OutcomeFunction = Callable[[EpisodeId, tuple[Action, ...]], Outcome]
SecondsFunction = Callable[[EpisodeId, int], float]


@dataclass
class SimulatedSlot:
    """An environment whose observation is a function of what was done, and whose tools take stated times.

    Args:
        outcome: ``outcome(episode, actions)`` after the actions so far.
        tool_seconds: ``tool_seconds(episode, turn)``.
        first_observation: ``first_observation(episode)``.
        executed: Every action that reached the environment, by episode (invariant I3 is read off here).
    """

    outcome: OutcomeFunction
    tool_seconds: SecondsFunction
    first_observation: Callable[[EpisodeId], Observation] = lambda episode: f"task {episode.task_id}"
    executed: dict[EpisodeId, list[Action]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._episode: EpisodeId | None = None

    async def reset(self, episode: Episode) -> tuple[Observation, dict[str, Any]]:
        """Begins an episode at once."""
        self._episode = episode.id
        self.executed[episode.id] = []
        return self.first_observation(episode.id), {}

    async def step(self, action: Action) -> StepResult:
        """Sleeps for the tool's seconds, then answers."""
        if self._episode is None:
            raise InvalidArgumentError("step() needs reset() before it")
        actions = self.executed[self._episode]
        actions.append(action)
        await asyncio.sleep(self.tool_seconds(self._episode, len(actions) - 1))
        outcome = self.outcome(self._episode, tuple(actions))
        return outcome.observation, 0.0, outcome.ends, False, {}

    def close(self) -> None:
        """Owns nothing."""


def oracle_of(outcome: OutcomeFunction) -> Callable[[History, Action], Outcome]:
    """The function that knows what a simulated environment will answer: the limit no world model can pass."""

    def oracle(history: History, action: Action) -> Outcome:
        actions = (*(turn.action for turn in history.turns), action)
        return outcome(history.episode, actions)

    return oracle
