"""A trajectory: one finished episode, with everything a trainer needs of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from obsspec_gym.agents.history import History
from obsspec_gym.types import Action, Completion, EpisodeId, Observation, TokenIds


@dataclass(frozen=True, slots=True)
class Step:
    """One turn of a trajectory.

    Attributes:
        action: What was executed.
        completion: What it was read from: tokens and logprobs as sampled.
        observation: What came back.
        reward: The environment's reward for it.
        hit: Whether the action came from a future.
        tool_seconds: How long the tool ran, in wall seconds.
    """

    action: Action
    completion: Completion
    observation: Observation
    reward: float
    hit: bool
    tool_seconds: float


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One finished episode. A broken one is data too: it is truncated and carries the reason.

    Attributes:
        episode: Task and sample.
        history: Everything up to the last action; ``None`` if the environment could not even be reset.
        steps: The turns, oldest first.
        terminated: Whether the environment said the episode ended.
        truncated: Whether it was cut off (turn limit, broken sandbox, full context).
        reason: Why it was cut off; empty otherwise.
        started: Loop time at which ``reset`` was called.
        finished: Loop time at which the last tool ended.
        broken: Whether it was cut off by what is not the policy's doing: its environment or its engine failed
            (``info["broken"]``, or an exception). A turn limit and a full context are not.
    """

    episode: EpisodeId
    history: History | None
    steps: tuple[Step, ...]
    terminated: bool
    truncated: bool
    reason: str
    started: float
    finished: float
    broken: bool = False

    @property
    def reward(self) -> float:
        """Sum of the rewards."""
        return sum(step.reward for step in self.steps)

    @property
    def seconds(self) -> float:
        """Agent latency: wall seconds from reset to the end (DESIGN, Measures)."""
        return self.finished - self.started

    @property
    def prompt_ids(self) -> TokenIds:
        """The tokens before the first completion."""
        return self.history.root.segment if self.history else ()

    @property
    def completion_ids(self) -> TokenIds:
        """All tokens after the prompt: actions and observations in turn, as the policy was conditioned on them."""
        if self.history is None:
            return ()
        return self.history.token_ids[len(self.prompt_ids) :]

    @property
    def env_mask(self) -> tuple[int, ...]:
        """For each of ``completion_ids``: 1 where the policy sampled it, 0 where the environment wrote it."""
        if self.history is None:
            return ()
        return tuple(int(event.is_action) for event in self.history.events[1:] for _ in event.segment)

    @property
    def logprobs(self) -> tuple[float, ...]:
        """For each of ``completion_ids``: the logprob it was sampled with, 0.0 for the environment's tokens."""
        if self.history is None:
            return ()
        logprobs: list[float] = []
        actions = iter(self.steps)
        for event in self.history.events[1:]:
            sampled = next(actions).completion.logprobs if event.is_action else ()
            logprobs += sampled if len(sampled) == len(event.segment) else [0.0] * len(event.segment)
        return tuple(logprobs)

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary for a JSONL file."""
        return {
            "task": self.episode.task_id,
            "sample": self.episode.sample,
            "instruction": None if self.history is None else _plain(self.history.first_observation),
            "reward": self.reward,
            "terminated": self.terminated,
            "truncated": self.truncated,
            "reason": self.reason,
            "broken": self.broken,
            "seconds": self.seconds,
            "prompt_ids": list(self.prompt_ids),
            "steps": [
                {
                    "action": _plain(step.action),
                    "token_ids": list(step.completion.token_ids),
                    "logprobs": list(step.completion.logprobs),
                    "observation": _plain(step.observation),
                    "reward": step.reward,
                    "hit": step.hit,
                    "tool_seconds": step.tool_seconds,
                }
                for step in self.steps
            ],
        }


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return value if isinstance(value, str | int | float | bool | None) else repr(value)
