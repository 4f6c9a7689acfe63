"""From a source's own confidence to the probability that its predictions come true, learnt on line."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from obsspec_gym.agents.history import History, fingerprint
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.types import Action, Outcome, Prediction, Transition

# Sequence probabilities crowd at both ends, and what matters is decided near 1: bins are finer there.
_EDGES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99, 0.999)


class Calibrator:
    """Turns a raw confidence into the probability of an exact match.

    Confidences are binned; a bin holds a Beta-Bernoulli estimate whose prior mean is the confidence itself, so
    that an unused calibrator believes what it is told (but never 0 or 1), and the less a bin has seen the more it
    still tells its confidences apart. Pooling adjacent violators (isotonic regression) makes the estimates
    monotone: a higher confidence never gives a lower probability.

    Args:
        strength: How many observations the prior is worth, a bin.
        window: Over about how many observations a bin forgets: sources that learn become better.

    Raises:
        InvalidArgumentError: If an argument is not positive.

    Example:
        >>> calibrator = Calibrator()
        >>> round(calibrator(0.87), 9)
        0.87
        >>> for _ in range(100):
        ...     calibrator.update(0.95, matched=False)
        >>> calibrator(0.95) < 0.1
        True
    """

    def __init__(self, *, strength: float = 4.0, window: float = 1000.0) -> None:
        if not strength > 0 or not window > 1:
            raise InvalidArgumentError(f"strength must be > 0 and window > 1, got {strength} and {window}")
        self._strength = strength
        self._keep = 1.0 - 1.0 / window
        bounds = (0.0, *_EDGES, 1.0)
        self._prior = [(low + high) / 2 for low, high in pairwise(bounds)]
        self._matched = [0.0] * len(self._prior)
        self._tried = [0.0] * len(self._prior)
        self._fitted: tuple[list[float], list[float]] | None = None

    def __call__(self, confidence: float) -> float:
        """The probability of an exact match, in [0, 1].

        Args:
            confidence: What the source says, in [0, 1].

        Raises:
            InvalidArgumentError: If it is outside [0, 1].
        """
        if self._fitted is None:
            self._fitted = self._fit()
        values, cuts = self._fitted
        place = _bin(confidence)
        leaning = self._strength / (self._tried[place] + self._strength)
        return min(max(values[place] + leaning * (confidence - self._prior[place]), cuts[place]), cuts[place + 1])

    def update(self, confidence: float, matched: bool) -> None:
        """Learns from one verified prediction.

        Args:
            confidence: What the source had said.
            matched: Whether observation and end came true exactly.

        Raises:
            InvalidArgumentError: If the confidence is outside [0, 1].
        """
        place = _bin(confidence)
        self._matched[place] = self._matched[place] * self._keep + matched
        self._tried[place] = self._tried[place] * self._keep + 1
        self._fitted = None

    def _fit(self) -> tuple[list[float], list[float]]:
        """Each bin's probability in its middle, and what the probabilities at its ends are kept between."""
        means = [
            (matched + self._strength * prior) / (tried + self._strength)
            for matched, tried, prior in zip(self._matched, self._tried, self._prior, strict=True)
        ]
        # A prior is an opinion, not evidence: bins without observations follow those that have some.
        values = pool_adjacent_violators(means, [tried + 0.1 for tried in self._tried])
        parts = [(edge - low) / (high - low) for edge, (low, high) in zip(_EDGES, pairwise(self._prior), strict=True)]
        between = [low + part * (high - low) for part, (low, high) in zip(parts, pairwise(values), strict=True)]
        return values, [values[0], *between, values[-1]]  # never 0, never 1: nothing is known for certain

    def state_dict(self) -> dict[str, list[float]]:
        """What was learnt, for a checkpoint."""
        return {"matched": list(self._matched), "tried": list(self._tried)}

    def load_state_dict(self, state: Mapping[str, Sequence[float]]) -> None:
        """Takes back what :meth:`state_dict` gave."""
        self._matched, self._tried = list(state["matched"]), list(state["tried"])
        self._fitted = None


def _bin(confidence: float) -> int:
    if not 0.0 <= confidence <= 1.0:
        raise InvalidArgumentError(f"a confidence must be in [0, 1], got {confidence}")
    return bisect_right(_EDGES, confidence)


def pool_adjacent_violators(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The non-decreasing sequence nearest to ``values`` in weighted squares.

    Example:
        >>> pool_adjacent_violators([0.0, 3.0, 1.0], [1.0, 1.0, 1.0])
        [0.0, 2.0, 2.0]
    """
    pools: list[tuple[float, float, int]] = []  # mean, weight, how many values
    for value, weight in zip(values, weights, strict=True):
        pools.append((value, weight, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (left, left_weight, left_count), (right, right_weight, right_count) = pools[-2:]
            total = left_weight + right_weight
            mean = (left * left_weight + right * right_weight) / total
            pools[-2:] = [(mean, total, left_count + right_count)]
    return [mean for mean, _, count in pools for _ in range(count)]


class Calibration:
    """One :class:`Calibrator` a source, fed with what really happened.

    Predictions pass through :meth:`apply`, which remembers the most recent ones by history and action; the
    transition that verifies them passes through :meth:`observe`. A prediction for a history that never became
    real is never verified and teaches nothing.

    Args:
        capacity: How many pairs of history and action are remembered for verification.
    """

    def __init__(self, *, capacity: int = 4096) -> None:
        self._calibrators: dict[str, Calibrator] = {}
        self._pending: OrderedDict[bytes, dict[bytes, tuple[str, float]]] = OrderedDict()
        self._capacity = capacity

    def __getitem__(self, source: str) -> Calibrator:
        return self._calibrators.setdefault(source, Calibrator())

    def apply(self, history: History, action: Action, predictions: Sequence[Prediction]) -> list[Prediction]:
        """Calibrates raw predictions and orders them, most probable first.

        Args:
            history: What they are conditioned on.
            action: What they are the outcome of.
            predictions: Distinct predictions with their source's raw confidence as ``probability``.
        """
        question = _question(history, action)
        pending = self._pending.setdefault(question, {})
        self._pending.move_to_end(question)
        for prediction in predictions:
            pending[outcome_key(prediction)] = (prediction.source, prediction.probability)
        while len(self._pending) > self._capacity:
            self._pending.popitem(last=False)
        # Several confidences may give the same probability: among them, the source's own order stands.
        by_confidence = sorted(predictions, key=lambda p: -p.probability)
        calibrated = [replace(p, probability=self[p.source](p.probability)) for p in by_confidence]
        return capped(sorted(calibrated, key=lambda p: -p.probability))

    def observe(self, transition: Transition) -> None:
        """Verifies what was predicted for this transition, if anything was."""
        history = transition.history.parent
        if history is None:
            return
        happened = outcome_key(transition.outcome)
        predicted = self._pending.get(_question(history, transition.action), {})
        for outcome, (source, confidence) in predicted.items():
            self[source].update(confidence, outcome == happened)

    def state_dict(self) -> dict[str, Any]:
        """What every source's calibrator has learnt; pending predictions are not part of it."""
        return {source: calibrator.state_dict() for source, calibrator in self._calibrators.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes back what :meth:`state_dict` gave."""
        self._calibrators.clear()
        for source, learnt in state.items():
            self[source].load_state_dict(learnt)


def outcome_key(outcome: Outcome | Prediction) -> bytes:
    """Equal exactly where two outcomes are: observation, end, and what else is visible."""
    return fingerprint((outcome.observation, outcome.ends, outcome.visible), exact=True)


def capped(predictions: Sequence[Prediction]) -> list[Prediction]:
    """Leaves each of these distinct outcomes, in their order, at most what the ones before it left of 1.

    Example:
        >>> [p.probability for p in capped([Prediction("a", probability=0.75), Prediction("b", probability=0.5)])]
        [0.75, 0.25]
    """
    left = 1.0
    bounded: list[Prediction] = []
    for prediction in predictions:
        bounded.append(replace(prediction, probability=min(prediction.probability, left)))
        left -= bounded[-1].probability
    return bounded


def _question(history: History, action: Action) -> bytes:
    return history.world_key + fingerprint(action)
