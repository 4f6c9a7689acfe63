"""World models asked one after the other: the cheap and sure one first, the next where it has nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from obsspec_gym.agents.history import History
from obsspec_gym.agents.world_model.base import WorldModel
from obsspec_gym.agents.world_model.calibration import capped, outcome_key
from obsspec_gym.agents.world_model.punctuality import Punctuality
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.types import Action, Prediction, Transition


@runtime_checkable
class Checkpointable(Protocol):
    """A world model whose knowledge can go into a checkpoint."""

    def state_dict(self) -> dict[str, Any]:
        """What it has learnt."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes it back."""
        ...


class CascadeWorldModel:
    """Memory first, model on a miss.

    The models are asked in order until there are ``n`` predictions, the best of them with a probability of at
    least ``sure``. Equal outcomes are merged (the higher probability stands), probabilities are those the models
    calibrated themselves, and each model is told of every transition: a model verifies what it had predicted.

    A model that is hardly ever done before the caller gives up, as on a machine that is busy, or for tools that are
    quick, is asked only now and then (see :class:`~obsspec_gym.agents.world_model.punctuality.Punctuality`): its
    computing would only slow the others down. The first is always asked.

    A model that raises or exceeds its ``patience`` loses only its own share: what the models before it said
    stands. Where nobody said anything, the error is raised, so that the caller can count it.

    Args:
        models: Cheapest first. They become the cascade's own: :meth:`close` closes them.
        sure: From which probability of the best prediction on the next model need not be asked; with ``n > 1`` it
            is asked all the same to fill up.
        min_probability: Predictions below are dropped.
        patience: Seconds each model may take; ``None`` for no bound.

    Attributes:
        failures: How often each model (by index) raised or ran out of patience.

    Raises:
        InvalidArgumentError: If there are no models, or a bound is out of range.
    """

    def __init__(
        self,
        models: Sequence[WorldModel],
        *,
        sure: float = 0.5,
        min_probability: float = 0.0,
        patience: float | None = None,
    ) -> None:
        if not models:
            raise InvalidArgumentError("a cascade needs at least one world model, got none")
        if not 0 <= sure <= 1 or not 0 <= min_probability <= 1:
            raise InvalidArgumentError(f"sure and min_probability must be in [0, 1], got {sure}, {min_probability}")
        if patience is not None and not patience > 0:
            raise InvalidArgumentError(f"patience must be > 0 seconds or None, got {patience}")
        self._models = tuple(models)
        self._sure = sure
        self._min_probability = min_probability
        self._patience = patience
        self._punctuality = tuple(Punctuality() for _ in self._models)
        self.failures: Counter[int] = Counter()

    @property
    def models(self) -> tuple[WorldModel, ...]:
        """The models, in the order they are asked."""
        return self._models

    async def predict(self, history: History, action: Action, n: int, partial: str = "") -> list[Prediction]:
        """At most ``n`` distinct predictions of all models, most probable first.

        Raises:
            Exception: What the last failing model raised, where no model predicted anything.
        """
        merged: list[Prediction] = []
        error: Exception | None = None
        for index, (model, punctuality) in enumerate(zip(self._models, self._punctuality, strict=True)):
            if len(merged) >= n and merged[0].probability >= self._sure:
                break
            if index and not punctuality.worth_asking(action):
                continue
            try:
                async with asyncio.timeout(self._patience):
                    new = await model.predict(history, action, n, partial)
                punctuality.note(action, in_time=True)
            except asyncio.CancelledError:
                punctuality.note(action, in_time=False)
                raise
            except Exception as failure:  # noqa: BLE001 - the boundary to users' models: one may fail alone (I4)
                self.failures[index] += 1
                error = failure
                continue
            merged = _merge(merged, new)
        if error is not None and not merged:
            raise error
        return [p for p in merged if p.probability >= self._min_probability][:n]

    def observe(self, transition: Transition) -> None:
        """Tells every model what really happened."""
        for model in self._models:
            model.observe(transition)

    def close(self) -> None:
        """Closes every model, also where closing one fails. Idempotent if the models' are."""
        errors: list[Exception] = []
        for model in self._models:
            try:
                model.close()
            except Exception as error:  # noqa: BLE001 - the rest must be closed too; raised below
                errors.append(error)
        if errors:
            raise ExceptionGroup("closing world models failed", errors)

    def state_dict(self) -> dict[str, Any]:
        """What each model has learnt, by its index; models without a state have none."""
        return {
            str(index): model.state_dict()
            for index, model in enumerate(self._models)
            if isinstance(model, Checkpointable)
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes back what :meth:`state_dict` gave."""
        for index, model in enumerate(self._models):
            if isinstance(model, Checkpointable) and str(index) in state:
                model.load_state_dict(state[str(index)])


def _merge(old: Sequence[Prediction], new: Sequence[Prediction]) -> list[Prediction]:
    """Distinct outcomes, each with its most confident prediction, most probable first."""
    best: dict[bytes, Prediction] = {}
    for prediction in (*old, *new):
        key = outcome_key(prediction)
        if key not in best or prediction.probability > best[key].probability:
            best[key] = prediction
    return capped(sorted(best.values(), key=lambda p: -p.probability))
