"""The oracle: what a run without speculation brought, foreseen at once. No world model can do better."""

from __future__ import annotations

from collections.abc import Iterable

from obsspec_gym.agents.history import History
from obsspec_gym.speculation.trajectory import Trajectory
from obsspec_gym.types import Action, EpisodeId, Outcome, Prediction, Transition


class RecordedOracle:
    """A world model that answers from recorded trajectories, in no time.

    An outcome is filed under its episode and everything that was done and seen in it up to then, so it is right as
    often as the environments repeat themselves, and silent where an episode took another turn.

    Args:
        trajectories: What to answer from; usually those of a sequential collection of the same episodes.

    Example:
        >>> import asyncio
        >>> oracle = RecordedOracle([])
        >>> asyncio.run(oracle.predict(History.start(EpisodeId("t"), "list the files"), "ls", 1))
        []
    """

    def __init__(self, trajectories: Iterable[Trajectory]) -> None:
        self._outcomes: dict[tuple[EpisodeId, bytes], Outcome] = {}
        for trajectory in trajectories:
            self._file(trajectory)

    def __len__(self) -> int:
        """How many outcomes are known."""
        return len(self._outcomes)

    async def predict(self, history: History, action: Action, n: int, partial: str = "") -> list[Prediction]:
        """The recorded outcome, or nothing."""
        outcome = self._outcomes.get((history.episode, history.act(action).world_key))
        if outcome is None or n < 1:
            return []
        return [Prediction(outcome.observation, outcome.ends, 1.0, "oracle", outcome.visible)]

    def observe(self, transition: Transition) -> None:
        """Learns nothing: it knew."""

    def close(self) -> None:
        """Owns nothing."""

    def _file(self, trajectory: Trajectory) -> None:
        if trajectory.history is None:
            return
        acted = [event for event in trajectory.history if event.is_action]
        over = trajectory.terminated or trajectory.truncated
        for turn, (event, step) in enumerate(zip(acted, trajectory.steps, strict=True), start=1):
            outcome = Outcome(step.observation, ends=over and turn == len(trajectory.steps))
            self._outcomes[trajectory.episode, event.world_key] = outcome
