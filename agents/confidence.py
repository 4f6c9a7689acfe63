"""Fits how sure the world model should be: on the policy's own rollouts, of tasks neither model was trained on.

The tasks are of the training range all the same: those that the pair is evaluated on are not looked at.

Example::

    python -m agents.confidence --policy build/pair/policy --world-model build/pair/world
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.optimize import minimize
from transformers import AutoTokenizer

from agents.corpus import LONGEST
from agents.evaluate import foresee, rollouts
from obsspec_gym.agents.engine.base import Engine
from obsspec_gym.agents.engine.transformers import TransformersEngine
from obsspec_gym.agents.history import History
from obsspec_gym.agents.lm_policy import LMPolicy
from obsspec_gym.agents.tokens import Tokenizer
from obsspec_gym.agents.world_model.calibration import outcome_key
from obsspec_gym.agents.world_model.confidence import FEATURES, Confidence, Evidence
from obsspec_gym.agents.world_model.lm import LMWorldModel
from obsspec_gym.speculation.trajectory import Trajectory
from obsspec_gym.types import Action, Prediction, Sampling, Transition

RIDGE = 1.0
"""Weight of the squared (standardised) weights in the loss, against one verified prediction."""

ENVIRONMENTS, WITNESSES = 8, 16


class Witness(LMWorldModel):
    """Notes the evidence for each of its predictions, and whether it came true.

    Args:
        engine: Generates.
        tokenizer: The model's.
    """

    def __init__(self, engine: Engine, tokenizer: Tokenizer) -> None:
        super().__init__(engine, tokenizer, confidence=self._note)
        self.evidence: list[Evidence] = []
        self.matched: list[bool] = []
        self._latest: tuple[Evidence, Prediction] | None = None
        self._noted: Evidence | None = None

    def _note(self, evidence: Evidence) -> float:
        self._noted = evidence
        return evidence.sequence_probability

    async def predict(self, history: History, action: Action, n: int, partial: str = "") -> list[Prediction]:
        """Predicts, and remembers the first prediction with its evidence."""
        predictions = await super().predict(history, action, n, partial)
        self._latest = (self._noted, predictions[0]) if predictions and self._noted is not None else None
        return predictions

    def observe(self, transition: Transition) -> None:
        """Keeps the verdict; what a last command prints nobody waits for."""
        if self._latest is not None and not transition.outcome.ends:
            evidence, prediction = self._latest
            self.evidence.append(evidence)
            self.matched.append(outcome_key(prediction) == outcome_key(transition.outcome))


def fit(evidence: Sequence[Evidence], matched: Sequence[bool]) -> Confidence:
    """The logistic regression with the least loss.

    Args:
        evidence: One for each prediction: (N,).
        matched: Whether each came true: (N,).
    """
    features = np.array([each.features for each in evidence])
    sign = np.where(np.array(matched), 1.0, -1.0)
    mean, scale = features.mean(0), features.std(0) + 1e-9
    standard = (features - mean) / scale

    def loss(parameters: np.ndarray) -> float:
        logits = parameters[0] + standard @ parameters[1:]
        return float(np.logaddexp(0, -sign * logits).sum() + RIDGE / 2 * (parameters[1:] ** 2).sum())

    bias, *weights = minimize(loss, np.zeros(FEATURES + 1)).x
    unscaled = np.array(weights) / scale
    return Confidence(float(bias - unscaled @ mean), tuple(map(float, unscaled)))


async def gather(args: argparse.Namespace) -> tuple[list[Evidence], list[bool]]:
    """Rolls the policy out at temperature 1, and has the world model foresee every turn."""
    tokenizer = AutoTokenizer.from_pretrained(args.policy, local_files_only=True)
    own: list[Trajectory] = []
    with TransformersEngine(args.policy) as engine:
        policy = LMPolicy(engine, tokenizer, sampling=Sampling(max_tokens=LONGEST))
        for number, suite in enumerate(args.suite):
            first = args.first + number * args.episodes
            tasks = range(first, first + args.episodes)
            own += await rollouts(policy, suite, tasks, 1, args.work, args.sandbox, ENVIRONMENTS)
    with TransformersEngine(args.world_model) as engine:
        witnesses = [Witness(engine, tokenizer) for _ in range(WITNESSES)]  # the engine answers them in one batch
        await asyncio.gather(*[foresee(witness, own[i::WITNESSES]) for i, witness in enumerate(witnesses)])
    evidence = [each for witness in witnesses for each in witness.evidence]
    return evidence, [each for witness in witnesses for each in witness.matched]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Fit how sure a world model should be of its predictions.")
    parser.add_argument("--policy", type=Path, required=True)
    parser.add_argument("--world-model", type=Path, required=True, help="gets the result")
    parser.add_argument("--first", type=int, default=300_000, help="index of the first task")
    parser.add_argument("--suite", nargs="+", default=["basics"])
    parser.add_argument("--episodes", type=int, default=400, help="of each suite")
    parser.add_argument("--work", type=float, default=0.1, help="how much work the tasks' programs have")
    parser.add_argument("--sandbox", default="bubblewrap")
    args = parser.parse_args()
    confidence = fit(*asyncio.run(gather(args)))
    confidence.save(args.world_model)
    print(confidence)


if __name__ == "__main__":
    main()
