"""Are two collections the same trajectories, and if not, what differed first (invariants I2a, I2b)?"""

from __future__ import annotations

import enum
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from obsspec_gym.agents.history import same_observation
from obsspec_gym.speculation.trajectory import Trajectory


class Cause(enum.Enum):
    """What differed first."""

    OBSERVATION_TIME = "observation: a date, a clock or a duration"
    """Two observations of the same command differ in digits only."""
    OBSERVATION = "observation: other text"
    """Two observations of the same command differ otherwise."""
    ACTION = "action"
    """The same observations, another action: a fault of the speculation, or of the engine's exactness."""
    TOKENS = "tokens"
    """The same action by other tokens."""
    ENDING = "ending"
    """One episode goes on where the other ended."""
    MISSING = "missing"
    """The episode is in one collection only."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference between two runs of one episode.

    Attributes:
        task_id: The task.
        sample: The sample.
        turn: The turn at which they first differ, from 0.
        cause: What differed.
        left: One side, shortened.
        right: The other side.
    """

    task_id: str
    sample: int
    turn: int
    cause: Cause
    left: str
    right: str

    def __str__(self) -> str:
        return f"{self.task_id}#{self.sample}, turn {self.turn}: {self.cause.value}: {self.left} | {self.right}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of comparing two collections of the same episodes.

    Attributes:
        episodes: How many episodes were compared.
        turns: How many turns were the same before any difference.
        tokens: How many sampled tokens were the same.
        differences: The first difference of each episode that has one.
    """

    episodes: int
    turns: int
    tokens: int
    differences: tuple[Difference, ...]

    @property
    def identical(self) -> bool:
        """Whether nothing differs."""
        return not self.differences

    @property
    def actions_identical(self) -> bool:
        """Whether every first difference is in an observation: the policy answered the same to the same (I2b)."""
        return all(d.cause in (Cause.OBSERVATION_TIME, Cause.OBSERVATION) for d in self.differences)

    @property
    def causes(self) -> dict[str, int]:
        """How many first differences each cause has."""
        return dict(Counter(difference.cause.value for difference in self.differences))

    def summary(self) -> str:
        """One sentence for people."""
        if self.identical:
            return f"identical: {self.turns} turns, {self.tokens} tokens in {self.episodes} episodes"
        return f"{len(self.differences)} of {self.episodes} episodes differ; first: {self.differences[0]}"


def compare(left: Sequence[Trajectory], right: Sequence[Trajectory]) -> Comparison:
    """Compares two collections episode by episode, turn by turn, up to the first difference of each."""
    others = {trajectory.episode: trajectory for trajectory in right}
    turns = tokens = 0
    differences: list[Difference] = []
    for one in left:
        other = others.pop(one.episode, None)
        if other is None:
            differences.append(_difference(one, 0, Cause.MISSING, "there", "missing"))
            continue
        same_turns, same_tokens, difference = _first_difference(one, other)
        turns, tokens = turns + same_turns, tokens + same_tokens
        if difference is not None:
            differences.append(difference)
    differences += [_difference(other, 0, Cause.MISSING, "missing", "there") for other in others.values()]
    return Comparison(len(left), turns, tokens, tuple(differences))


def _first_difference(one: Trajectory, other: Trajectory) -> tuple[int, int, Difference | None]:
    turns = tokens = 0
    if one.history is not None and other.history is not None:
        left, right = one.history.first_observation, other.history.first_observation
        if not same_observation(left, right):
            return 0, 0, _difference(one, 0, _observation_cause(left, right), left, right)
    for turn, (a, b) in enumerate(zip(one.steps, other.steps, strict=False)):
        if not same_observation(a.action, b.action):
            return turns, tokens, _difference(one, turn, Cause.ACTION, a.action, b.action)
        if a.completion.token_ids != b.completion.token_ids:
            left, right = a.completion.token_ids, b.completion.token_ids
            return turns, tokens, _difference(one, turn, Cause.TOKENS, left, right)
        turns, tokens = turns + 1, tokens + len(a.completion.token_ids)
        if not same_observation(a.observation, b.observation):
            cause = _observation_cause(a.observation, b.observation)
            return turns, tokens, _difference(one, turn, cause, a.observation, b.observation)
    ending = (len(one.steps), one.terminated, one.truncated)
    if ending != (len(other.steps), other.terminated, other.truncated):
        left = f"{len(one.steps)} turns {one.reason}"
        return turns, tokens, _difference(one, turns, Cause.ENDING, left, f"{len(other.steps)} turns {other.reason}")
    return turns, tokens, None


def _observation_cause(left: Any, right: Any) -> Cause:
    if isinstance(left, str) and isinstance(right, str) and _without_digits(left) == _without_digits(right):
        return Cause.OBSERVATION_TIME
    return Cause.OBSERVATION


def _without_digits(text: str) -> str:
    return re.sub(r"[0-9]+", "0", text)


def _difference(trajectory: Trajectory, turn: int, cause: Cause, left: Any, right: Any) -> Difference:
    episode = trajectory.episode
    return Difference(episode.task_id, episode.sample, turn, cause, _short(left), _short(right))


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    text = text.replace("\n", "\\n")
    return text if len(text) <= 120 else f"{text[:60]} ... {text[-50:]}"
