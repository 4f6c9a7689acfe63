"""How far ahead, and on how many guesses, to speculate at a turn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from obsspec_gym.agents.engine.base import EngineLoad
from obsspec_gym.agents.history import History
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.speculation.record import TurnRecord
from obsspec_gym.types import EpisodeId, Prediction


@dataclass(frozen=True, slots=True)
class Budget:
    """What one turn may speculate.

    Attributes:
        depth: Observations ahead; 0 means none at this turn.
        breadth: Alternative observations at each level.
        reason: Why, for the trace.
        generate: Whether anything may be generated on the predictions; if not they are only compared with the
            truth, so that how good they are stays known.
    """

    depth: int
    breadth: int
    reason: str = ""
    generate: bool = True


@dataclass(frozen=True, slots=True)
class Candidate:
    """A prediction that has come in: is the next action to be generated on it?

    Attributes:
        acted: The history that ends in the action whose outcome was predicted.
        prediction: The prediction.
        rank: Its place among the predictions of that outcome, from 0.
        level: Observations ahead of the real history, from 1.
        reached: Estimated probability that ``acted`` itself comes true; 1 at level 1.
        elapsed: Seconds since the turn's tool began.
        budget: The turn's budget.
    """

    acted: History
    prediction: Prediction
    rank: int
    level: int
    reached: float
    elapsed: float
    budget: Budget


class Selector(ABC):
    """Chooses a budget for every turn; may decline single predictions, and may learn from what happened.

    One selector belongs to one run: what it has learnt is of that run.
    """

    @property
    @abstractmethod
    def depth(self) -> int:
        """Observations ahead at most."""

    @abstractmethod
    def budget(self, acted: History) -> Budget:
        """The budget for the turn whose action ends ``acted``."""

    def chance(self, candidate: Candidate) -> float:
        """The probability with which a candidate is taken to come true; 0 declines it.

        What is declined is still compared with the truth, but nothing is generated on it.
        """
        return candidate.reached if candidate.budget.generate else 0.0

    def observe(self, acted: History, record: TurnRecord) -> None:  # noqa: B027 - who need not learn does not
        """Is told what a turn came to."""

    def forget(self, episode: EpisodeId) -> None:  # noqa: B027 - nor keep anything of an episode
        """Is told that an episode is over, however it ended."""

    def attach(self, load: Callable[[], EngineLoad]) -> None:  # noqa: B027 - nor ask
        """Is told how to ask how busy the policy's engine is."""


class FixedSelector(Selector):
    """The same depth and breadth at every turn; ``FixedSelector(1, 1)`` is the paper's default (PAPERS 1).

    Args:
        depth: Observations ahead, >= 0.
        breadth: Alternatives at each level, >= 1.

    Raises:
        InvalidArgumentError: If either is out of range.
    """

    def __init__(self, depth: int = 1, breadth: int = 1) -> None:
        if depth < 0 or breadth < 1:
            raise InvalidArgumentError(
                f"a selector needs depth >= 0 and breadth >= 1, got depth={depth} and breadth={breadth}"
            )
        self._budget = Budget(depth, breadth, "fixed")

    @property
    def depth(self) -> int:
        """Observations ahead."""
        return self._budget.depth

    def budget(self, acted: History) -> Budget:
        """The fixed budget."""
        return self._budget

    def __repr__(self) -> str:
        return f"FixedSelector(depth={self._budget.depth}, breadth={self._budget.breadth})"


class Off(FixedSelector):
    """No speculation: the sequential baseline, on the same code path."""

    def __init__(self) -> None:
        super().__init__(0, 1)

    def __repr__(self) -> str:
        return "Off()"
