"""How far ahead, and on how many guesses, to speculate at a turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from obsspec_gym.agents.history import History
from obsspec_gym.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class Budget:
    """What one turn may speculate.

    Attributes:
        depth: Observations ahead; 0 means none at this turn.
        breadth: Alternative observations at each level.
        reason: Why, for the trace.
    """

    depth: int
    breadth: int
    reason: str = ""


@runtime_checkable
class Selector(Protocol):
    """Chooses a budget for every turn."""

    def budget(self, history: History) -> Budget:
        """The budget for the turn whose action ends ``history``."""
        ...


class FixedSelector:
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

    def budget(self, history: History) -> Budget:
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
