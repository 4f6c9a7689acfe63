"""Passages as tensors, and what a model says at the places where an answer's tokens are to be foreseen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from obsspec_gym.training.passages import Passage


@dataclass(frozen=True, slots=True)
class AnswerBatch:
    """Some passages, and the N tokens of all their answers, one after the other.

    Attributes:
        ids: Tokens, padded on the right: (B, L).
        rows: Which passage each answer's token is in: (N,).
        columns: Where in it is the token before, which foresees it: (N,).
        targets: The tokens: (N,).
        owners: Which answer each is of, counted over the batch: (N,).
    """

    ids: Tensor
    rows: Tensor
    columns: Tensor
    targets: Tensor
    owners: Tensor

    @classmethod
    def of(cls, passages: Sequence[Passage], device: torch.device) -> AnswerBatch:
        """The batch of at least one passage."""
        length = max(1, *(len(passage.ids) for passage in passages))
        ids = torch.zeros((len(passages), length), dtype=torch.long)
        places: list[tuple[int, int, int, int]] = []
        owner = 0
        for row, passage in enumerate(passages):
            ids[row, : len(passage.ids)] = torch.tensor(passage.ids, dtype=torch.long)
            for answer in passage.answers:
                places += [(row, at - 1, passage.ids[at], owner) for at in range(answer.start, answer.stop)]
                owner += 1
        columns = torch.tensor(places, dtype=torch.long).reshape(-1, 4).to(device)
        return cls(ids.to(device), *columns.unbind(dim=1))


def hidden_states(model: PreTrainedModel, batch: AnswerBatch) -> Tensor:
    """What the model knows at each place that foresees a token: (N, hidden).

    Right padding needs no mask: attention is causal, and nothing real looks at it.
    """
    hidden: Tensor = model.base_model(input_ids=batch.ids, use_cache=False).last_hidden_state
    return hidden[batch.rows, batch.columns]


def logits(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    """The model's logits of hidden states: (N, vocabulary). Made at the places that need them, and nowhere else."""
    head: torch.nn.Module = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    scores: Tensor = head(hidden)
    return scores
