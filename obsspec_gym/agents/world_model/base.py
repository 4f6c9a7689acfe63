"""What every world model offers."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from obsspec_gym.agents.history import History
from obsspec_gym.types import Action, Prediction, Transition


@runtime_checkable
class WorldModel(Protocol):
    """Predicts what a tool will answer. It may be wrong, slow or broken: a rollout never changes for it (I4)."""

    async def predict(self, history: History, action: Action, n: int, partial: str = "") -> list[Prediction]:
        """Predicts the outcome of ``action``.

        Args:
            history: Ends with the observation that ``action`` was chosen on.
            action: What is being executed.
            n: At most this many predictions.
            partial: Output the tool has printed already; predictions must be able to continue it.

        Returns:
            Distinct predictions, most probable first; possibly none.
        """
        ...

    def observe(self, transition: Transition) -> None:
        """Takes note of what really happened (memory, calibration). Must be quick; training goes elsewhere."""
        ...

    def close(self) -> None:
        """Releases what it owns. Idempotent."""
        ...
