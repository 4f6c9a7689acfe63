"""Addressed noise, and the pick.

Completion token ``i`` is argmax(log p + Gumbel(seed, i)), p being the processed distribution: a pure function of
the logits, the seed and the index, whatever else is in the batch. Gumbel-argmax is computed as the equal
argmax(p / E) with exponential noise E, from a 64-bit key per (seed, i) and a 32-bit integer hash per token id.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from obsspec_gym.types import Sampling

_MASK64 = (1 << 64) - 1
_GOLDEN64 = 0x9E3779B97F4A7C15
_GOLDEN32 = np.uint32(0x9E3779B1)
_MIX_A, _MIX_B = np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)
_S13, _S16 = np.uint32(13), np.uint32(16)
# Maps a 32-bit integer into (0, 1) in float32: fine steps near 0, where the winners are, and never 1.
_SCALE = np.float32(2.0**-32 * (1 - 2.0**-23))
_OFFSET = np.float32(2.0**-33)


@dataclass(frozen=True, slots=True)
class Draw:
    """What tells one pick from every other: whose seed, and the index in the completion."""

    sampling: Sampling
    seed: int
    index: int


def noise_key(seed: int, index: int) -> int:
    """The 64-bit key of one pick."""
    return _mix64(_mix64(seed) + (index + 1) * _GOLDEN64)


def _mix64(z: int) -> int:
    z &= _MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
    return z ^ (z >> 31)


class Sampler:
    """Picks tokens.

    Args:
        vocabulary: Number of token ids.
        device: Where the logits are.
    """

    def __init__(self, vocabulary: int, device: torch.device) -> None:
        self._hashed_ids = np.arange(vocabulary, dtype=np.uint32)[None] * _GOLDEN32
        self._device = device

    def exponentials(self, keys: Sequence[int]) -> torch.Tensor:
        """Exponential noise, one row a key, float32 ``[key, token]``."""
        wide = np.array(keys, dtype=np.uint64)[:, None]
        low, high = wide.astype(np.uint32), (wide >> np.uint64(32)).astype(np.uint32)
        bits = self._hashed_ids + low
        bits ^= bits >> _S16
        bits *= _MIX_A
        bits ^= bits >> _S13
        bits ^= high
        bits *= _MIX_B
        bits ^= bits >> _S16
        bits *= _MIX_A
        bits ^= bits >> _S13
        uniform = bits.astype(np.float32)
        uniform *= _SCALE
        uniform += _OFFSET
        return torch.from_numpy(uniform).to(self._device).neg_().log1p_().neg_()

    def pick(self, logits: torch.Tensor, draws: Sequence[Draw]) -> tuple[list[int], list[float]]:
        """Draws one token a row.

        Args:
            logits: ``[row, token]``.
            draws: One a row.

        Returns:
            Token ids and their log probabilities under the processed distribution; a probability is NaN where the
            logits were.
        """
        logp = torch.log_softmax(process(logits, [draw.sampling for draw in draws]), dim=-1)
        noisy = [draw.sampling.temperature > 0 for draw in draws]
        if any(noisy):
            scores = logp.exp().div_(self.exponentials([noise_key(d.seed, d.index) for d in draws]))
            if not all(noisy):
                greedy = torch.tensor([not n for n in noisy], device=self._device)
                scores = torch.where(greedy[:, None], logp, scores)
        else:
            scores = logp
        picked = scores.argmax(dim=-1, keepdim=True)
        return picked[:, 0].tolist(), logp.gather(1, picked)[:, 0].tolist()


def process(logits: torch.Tensor, samplings: Sequence[Sampling]) -> torch.Tensor:
    """Applies temperature, top-k and top-p.

    Args:
        logits: ``[row, token]``; not changed.
        samplings: One a row. Temperature 0 stands for the distribution at temperature 1.

    Returns:
        Logits, with minus infinity for tokens that are cut off.
    """
    if any(s.temperature not in (0, 1) for s in samplings):
        temperatures = torch.tensor([s.temperature or 1.0 for s in samplings], dtype=logits.dtype, device=logits.device)
        logits = logits / temperatures[:, None]
    cut = [i for i, s in enumerate(samplings) if s.top_k or s.top_p < 1]
    if len(cut) == len(samplings):
        return _cut_off(logits, samplings)
    if cut:
        logits = logits.clone()
        logits[cut] = _cut_off(logits[cut], [samplings[i] for i in cut])
    return logits


def _cut_off(logits: torch.Tensor, samplings: Sequence[Sampling]) -> torch.Tensor:
    """Sets what top-k and top-p drop to minus infinity. Ties go to the lower token id."""
    device, vocabulary = logits.device, logits.shape[-1]
    ordered, order = torch.sort(logits, dim=-1, descending=True, stable=True)
    top_k = torch.tensor([s.top_k or vocabulary for s in samplings], device=device)
    drop = torch.arange(vocabulary, device=device) >= top_k[:, None]
    if any(s.top_p < 1 for s in samplings):
        top_p = torch.tensor(
            [s.top_p if s.top_p < 1 else math.inf for s in samplings], dtype=logits.dtype, device=device
        )
        kept = torch.softmax(ordered.masked_fill_(drop, -torch.inf), dim=-1)
        drop |= kept.cumsum(dim=-1) - kept >= top_p[:, None]
    return logits.masked_fill(torch.empty_like(drop).scatter_(1, order, drop), -torch.inf)
