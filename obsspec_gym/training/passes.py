"""How the rows of a part of a batch are computed: rows of like length together, with a gradient where it matters.

Episodes differ in length tenfold, and a row as long as the longest costs as much as the longest. Most groups of a good
policy have equal rewards: their rows have no part in the loss, and only the figures that are logged need them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch.nn.functional import pad

Computed: TypeAlias = tuple[torch.Tensor, torch.Tensor | None]
"""Logprobs, and entropies where they are asked for: ``[row, token]``, of the last tokens of every row."""

Compute: TypeAlias = Callable[[torch.Tensor, torch.Tensor, int], Computed]
"""Goes through the model: token ids and attention mask, ``[row, token]``, and of how many of the last tokens."""


def in_passes(
    compute: Compute, input_ids: torch.Tensor, attention_mask: torch.Tensor, kept: int, learnt_from: torch.Tensor | None
) -> Computed:
    """Computes rows in several passes.

    Args:
        compute: Goes through the model once.
        input_ids: ``[row, token]``: a prompt, padded at its beginning, and a completion, padded at its end.
        attention_mask: The same shape, 0 for what is padded.
        kept: Width of the completions, in tokens.
        learnt_from: ``[row]``, whether a gradient is needed; ``None`` for all. Where no row needs one, all have one,
            which is 0: whoever goes backward expects it.

    Returns:
        Of the last ``kept`` tokens; 0 where a pass has no tokens.
    """
    rows, width = input_ids.shape
    if learnt_from is None or not learnt_from.any():
        learnt_from = torch.ones(rows, dtype=torch.bool, device=input_ids.device)
    lengths, order = attention_mask.sum(dim=1).tolist(), list[int]()
    logps, entropies = list[torch.Tensor](), list[torch.Tensor]()
    for needed in (True, False):
        chosen: list[int] = (learnt_from == needed).nonzero().flatten().tolist()
        for part in alike([lengths[row] for row in chosen]):
            row = torch.tensor([chosen[index] for index in part], device=input_ids.device)
            used = attention_mask[row].any(dim=0).nonzero().flatten()
            first, end = int(used[0]), max(int(used[-1]), width - kept) + 1  # at least one token of the completions
            with torch.set_grad_enabled(torch.is_grad_enabled() and needed):
                computed = compute(input_ids[row, first:end], attention_mask[row, first:end], kept - (width - end))
            logps.append(pad(computed[0], (0, width - end)))
            if computed[1] is not None:
                entropies.append(pad(computed[1], (0, width - end)))
            order += row.tolist()
    back = torch.tensor(order, device=input_ids.device).argsort()
    return torch.cat(logps)[back], torch.cat(entropies)[back] if entropies else None


def alike(lengths: Sequence[int]) -> list[list[int]]:
    """Parts in which nothing is less than half as long as the longest.

    Args:
        lengths: Of everything.

    Returns:
        Indices; the longest part first, and in each part the longest first.

    Example:
        >>> alike([3, 10, 7, 1])
        [[1, 2], [0], [3]]
    """
    parts: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if not parts or 2 * lengths[index] < lengths[parts[-1][0]]:
            parts.append([])
        parts[-1].append(index)
    return parts
