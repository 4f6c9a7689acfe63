"""How sure a language model's prediction is, from more than the probability of its text.

A small model is as sure of "all tests pass" after a wrong edit as after a right one: it cannot check the edit. But it
has learnt actions as well as observations, and a wrong edit is mostly one that it would not have made itself. So the
confidence also reads how surprising the actions so far were; how much that counts is fitted on rollouts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from obsspec_gym.errors import InvalidArgumentError

FILE = "confidence.json"
"""Where a model's directory keeps the fitted weights."""

LEAST = -6.0
"""Log-probabilities of actions below are all the same: odd."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of a prediction when it is made.

    Attributes:
        logprobs: Natural-log probability of each of its tokens, the closing one included; at least one.
        surprise: Bound on the log-probability of the least likely token in any action so far, in [LEAST, 0].
    """

    logprobs: Sequence[float]
    surprise: float = 0.0

    @property
    def sequence_probability(self) -> float:
        """The probability of the whole text, in [0, 1]."""
        return min(1.0, math.exp(math.fsum(self.logprobs)))

    @property
    def features(self) -> tuple[float, ...]:
        """What the logistic regression reads: (F,)."""
        whole = math.fsum(self.logprobs)
        probability = self.sequence_probability
        doubt = self.surprise * probability  # a surprise costs most where the text is sure of itself
        return (max(whole, -20.0), max(min(self.logprobs), -5.0), probability, probability**4, self.surprise, doubt)


FEATURES = len(Evidence((0.0,)).features)


@dataclass(frozen=True, slots=True)
class Confidence:
    """A logistic regression from evidence to the probability of an exact match.

    Attributes:
        bias: The constant.
        weights: One for each feature.

    Raises:
        InvalidArgumentError: If there are not as many weights as features.

    Example:
        >>> confidence = Confidence(0.0, (0.0, 0.0, 4.0, 0.0, 1.0, 0.0))
        >>> confidence(Evidence((-0.01,), surprise=-3.0)) < confidence(Evidence((-0.01,)))
        True
    """

    bias: float
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.weights) != FEATURES:
            raise InvalidArgumentError(f"expected {FEATURES} weights, one a feature, got {len(self.weights)}")

    def __call__(self, evidence: Evidence) -> float:
        """The probability, in [0, 1]."""
        logit = self.bias + math.fsum(w * x for w, x in zip(self.weights, evidence.features, strict=True))
        return 1.0 / (1.0 + math.exp(-max(-50.0, min(50.0, logit))))

    @classmethod
    def load(cls, directory: str | Path) -> Confidence | None:
        """What a model's directory says; ``None`` where it has nothing fitted.

        Raises:
            InvalidArgumentError: If the file is not what :meth:`save` writes.
        """
        file = Path(directory) / FILE
        if not file.is_file():
            return None
        try:
            state = json.loads(file.read_text())
            return cls(float(state["bias"]), tuple(map(float, state["weights"])))
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidArgumentError(f"{file} must hold a bias and weights, got: {error}") from None

    def save(self, directory: str | Path) -> None:
        """Writes it beside the weights of the model it was fitted for."""
        state = {"bias": round(self.bias, 4), "weights": [round(weight, 4) for weight in self.weights]}
        (Path(directory) / FILE).write_text(json.dumps(state) + "\n")
