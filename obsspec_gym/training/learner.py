"""The world model's training: cross-entropy on the tokens of observations, and on the token that closes each."""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from obsspec_gym.errors import ObsSpecError
from obsspec_gym.seeding import derive_seed
from obsspec_gym.training.answer_batch import AnswerBatch, hidden_states, logits
from obsspec_gym.training.cotraining_settings import CoTraining
from obsspec_gym.training.passages import Passage
from obsspec_gym.training.replay import Replay
from obsspec_gym.training.scoring import answers_of


class Learner:
    """A world model that is trained, beside its twin as it was at first.

    What predicts is not what the optimiser has just stepped to, but the moving average of what it has been (after
    Polyak and Juditsky, 1992): a step follows the last few batches, and what it forgets for them the average keeps.

    What it becomes is a function of its first weights, its settings and the passages, in their order: every draw is
    seeded by the number of the policy step, so there is no generator whose state could be lost.

    Args:
        model: Its weights are copied, in float32, to the device of the settings.
        settings: How it is trained.

    Attributes:
        model: The live model, which predicts: the average. Without dropout: it is trained as it predicts.
        student: What the optimiser steps.
        twin: The frozen one; ``None`` where it is not wanted.
        replay: What it is trained on.
    """

    def __init__(self, model: PreTrainedModel, settings: CoTraining) -> None:
        self._settings = settings
        self.model = _copy(model, settings.device)
        self.student = _copy(model, settings.device)
        self.student.requires_grad_(True)
        self.twin = _copy(model, settings.device) if settings.frozen_twin else None
        self.replay = Replay(
            window=settings.window, capacity_tokens=settings.capacity_tokens, half_life=settings.half_life
        )
        self._optimizer = torch.optim.AdamW(
            self.student.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
        )
        self._updates = 0

    def learn(self, passages: Sequence[Passage]) -> float | None:
        """One policy step: takes its passages into the replay, trains on draws from it, and averages.

        Args:
            passages: What happened since the last time, in an order that is the same on every process.

        Returns:
            The mean loss of a token; ``None`` where there is nothing to learn from yet.

        Raises:
            ObsSpecError: If the loss, its gradient or a weight is not finite. The live model is as before then.
        """
        settings = self._settings
        self.replay.add(passages)
        random = Random(derive_seed("co-training", settings.seed, self.replay.clock))
        batches = self.replay.batches(settings.steps, settings.batch_tokens, random)
        losses = [self._step(batch) for batch in batches]
        if not losses:
            return None
        if not all(bool(parameter.isfinite().all()) for parameter in self.student.parameters()):
            raise ObsSpecError("the world model's weights are not finite any more")
        self._average()
        return sum(losses) / len(losses)

    def _step(self, passages: Sequence[Passage]) -> float:
        settings = self._settings
        for group in self._optimizer.param_groups:
            group["lr"] = settings.learning_rate * min(1.0, (self._updates + 1) / (settings.warm_up + 1))
        self._optimizer.zero_grad(set_to_none=True)
        loss = self.loss(passages)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(self.student.parameters(), settings.max_grad_norm)
        if not (math.isfinite(loss.item()) and math.isfinite(norm.item())):
            raise ObsSpecError(f"the world model's loss is {loss.item()} and its gradient's norm {norm.item()}")
        self._optimizer.step()
        self._updates += 1
        return loss.item()

    @torch.no_grad()
    def _average(self) -> None:
        for live, trained in zip(self.model.parameters(), self.student.parameters(), strict=True):
            live.lerp_(trained, 1.0 - self._settings.ema_decay)

    def loss(self, passages: Sequence[Passage]) -> Tensor:
        """The student's mean cross-entropy of the answers' tokens, weighted as the settings say: a scalar."""
        batch = AnswerBatch.of(passages, self.student.device)
        scores = logits(self.student, hidden_states(self.student, batch))
        losses = torch.nn.functional.cross_entropy(scores, batch.targets, reduction="none")
        weights = self._weights(passages).to(self.student.device)[batch.owners]
        return (losses * weights).sum() / weights.sum()

    def _weights(self, passages: Sequence[Passage]) -> Tensor:
        """What each answer's tokens count."""
        seconds = torch.tensor([answer.hidable_seconds for answer in answers_of(passages)])
        mean = float(seconds.mean())
        return 1.0 + self._settings.time_weight * seconds / mean if mean > 0 else torch.ones_like(seconds)

    def weights(self) -> dict[str, Tensor]:
        """The live model's parameters by name, as they are: not copies."""
        return {name: parameter.detach() for name, parameter in self.model.named_parameters()}

    @property
    def _changing(self) -> dict[str, PreTrainedModel]:
        return {"model": self.model, "student": self.student}

    def cpu_weights(self) -> dict[str, dict[str, Tensor]]:
        """Copies of the live model's parameters and of the student's."""
        return {
            name: {key: parameter.detach().cpu().clone() for key, parameter in model.named_parameters()}
            for name, model in self._changing.items()
        }

    @torch.no_grad()
    def take_weights(self, weights: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Overwrites both with what :meth:`cpu_weights` gave."""
        for name, model in self._changing.items():
            for key, parameter in model.named_parameters():
                parameter.copy_(weights[name][key])

    def digest(self) -> str:
        """Equal exactly where the weights are, the live model's and the student's."""
        digest = hashlib.blake2b(digest_size=16)
        for parameters in self.cpu_weights().values():
            for parameter in parameters.values():
                digest.update(parameter.numpy().tobytes())
        return digest.hexdigest()

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next step depends on, in copies: weights, optimiser, replay."""
        return {
            "weights": self.cpu_weights(),
            "optimizer": copy.deepcopy(self._optimizer.state_dict()),
            "replay": self.replay.state_dict(),
            "updates": self._updates,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes back what :meth:`state_dict` gave. The twin stays what it is.

        Raises:
            ObsSpecError: If it is of a version that had no average.
        """
        if "weights" not in state:
            raise ObsSpecError("the checkpoint's world model is of an earlier version of co-training")
        self.take_weights(state["weights"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.replay.load_state_dict(state["replay"])
        self._updates = state["updates"]


def _copy(model: PreTrainedModel, device: str) -> PreTrainedModel:
    copied = copy.deepcopy(model)
    # TRL puts a forward of its own into the model it trains; its closure holds the model's own, bound, so that a copy
    # with it would compute with the original's weights.
    for module in copied.modules():
        vars(module).pop("forward", None)
    copied.to(device=torch.device(device), dtype=torch.float32)  # type: ignore[call-arg]  # a decorator hides its types
    copied.train(False)
    copied.requires_grad_(False)
    return copied
