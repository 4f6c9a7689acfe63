"""A world model that counts, for worlds whose next observation depends on the last one and the action alone."""

from __future__ import annotations

from collections import OrderedDict

from obsspec_gym.agents.history import History, fingerprint
from obsspec_gym.agents.world_model.calibration import outcome_key
from obsspec_gym.agents.world_model.partial import may_continue
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.types import Action, Outcome, Prediction, Transition


class TabularWorldModel:
    """Predicts what followed the same observation and action before, most often seen first.

    An outcome seen ``c`` times of ``N`` has probability ``c / (N + 1)``. A turn costs the same however long its episode
    is; :class:`~obsspec_gym.agents.world_model.memory.MemoryWorldModel` reads the whole history instead. Used from one
    thread.

    Args:
        capacity: Pairs of observation and action remembered; the one seen least recently is forgotten.
        outcomes: Distinct outcomes remembered for each; the rarest, then oldest, is forgotten.

    Raises:
        InvalidArgumentError: If an argument is not positive.

    Example:
        >>> import asyncio
        >>> from obsspec_gym.types import EpisodeId
        >>> table = TabularWorldModel()
        >>> history = History.start(EpisodeId("walk"), 3)
        >>> table.observe(Transition(history.act("left"), Outcome(2), 0.1))
        >>> elsewhere = History.start(EpisodeId("another walk"), 3)
        >>> [prediction] = asyncio.run(table.predict(elsewhere, "left", 1))
        >>> prediction.observation, prediction.probability
        (2, 0.5)
    """

    def __init__(self, *, capacity: int = 100_000, outcomes: int = 8) -> None:
        if capacity < 1 or outcomes < 1:
            raise InvalidArgumentError(f"capacity and outcomes must be >= 1, got {capacity} and {outcomes}")
        self._capacity = capacity
        self._outcomes = outcomes
        self._seen: OrderedDict[bytes, dict[bytes, tuple[Outcome, int]]] = OrderedDict()

    def __len__(self) -> int:
        """How many pairs of observation and action are remembered."""
        return len(self._seen)

    async def predict(self, history: History, action: Action, n: int, partial: str = "") -> list[Prediction]:
        """The ``n`` outcomes seen most often (of equally frequent ones, the most recent first)."""
        seen = [
            (outcome, count)
            for outcome, count in self._seen.get(_pair(history, action), {}).values()
            if may_continue(partial, outcome.observation)
        ]
        total = sum(count for _, count in seen)
        seen.reverse()  # most recent first, which a stable sort keeps among equals
        seen.sort(key=lambda entry: -entry[1])
        return [
            Prediction(outcome.observation, outcome.ends, count / (total + 1), "table", outcome.visible)
            for outcome, count in seen[:n]
        ]

    def observe(self, transition: Transition) -> None:
        """Counts what happened."""
        before = transition.history.parent
        if before is None:
            raise InvalidArgumentError("a transition's history must end with an action, got the start of one")
        pair, happened = _pair(before, transition.action), outcome_key(transition.outcome)
        outcomes = self._seen.setdefault(pair, {})
        self._seen.move_to_end(pair)
        _, count = outcomes.pop(happened, (None, 0))
        outcomes[happened] = (transition.outcome, count + 1)  # the last entry is the most recent
        if len(outcomes) > self._outcomes:
            del outcomes[min(outcomes, key=lambda key: outcomes[key][1])]
        if len(self._seen) > self._capacity:
            self._seen.popitem(last=False)

    def close(self) -> None:
        """Owns nothing that needs closing."""


def _pair(history: History, action: Action) -> bytes:
    return fingerprint((history.value, history.visible), exact=True) + fingerprint(action)
