"""Attention heads of a size that vLLM's kernels on the CPU do not have: padded with zeros, for the same outputs."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from obsspec_gym.errors import InvalidArgumentError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_CPU_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
_WITH_HEAD_DIM = ("llama", "qwen3")
"""Model types whose head size is configured by itself, in vLLM too."""


@dataclass(frozen=True, slots=True)
class HeadPadding:
    """Makes a model's heads larger.

    The added dimensions are zeros in queries, keys and values, are not rotated, and meet zeros in the output
    projection. What a larger head changes besides is undone in the weights: attention divides by the root of its
    size, and the norms of queries and keys take their mean over it.

    Attributes:
        size: The model's own head size.
        padded: The size it is given.
    """

    size: int
    padded: int

    @classmethod
    def needed(cls, config: PretrainedConfig) -> HeadPadding | None:
        """The padding a model needs on the CPU; ``None`` if it needs none.

        Raises:
            InvalidArgumentError: If it needs some and cannot be given any.
        """
        text = config.get_text_config()
        sizes = text.to_dict()
        size = sizes.get("head_dim") or text.hidden_size // text.num_attention_heads
        if size in _CPU_SIZES:
            return None
        padded = next((larger for larger in _CPU_SIZES if larger > size), None)
        if padded is None or text.model_type not in _WITH_HEAD_DIM or "partial_rotary_factor" in text.rope_parameters:
            raise InvalidArgumentError(
                f"vLLM on the CPU takes heads of {', '.join(map(str, _CPU_SIZES))}, and this {text.model_type} model "
                f"has heads of {size}"
            )
        return cls(size, padded)

    def config(self, config: PretrainedConfig) -> Any:
        """The padded model's configuration."""
        padded = copy.deepcopy(config)
        padded.head_dim = self.padded
        # A hair more than the ratio: vLLM rounds the product down.
        padded.rope_parameters = {**config.rope_parameters, "partial_rotary_factor": (self.size + 0.5) / self.padded}
        return padded

    def weights(self, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The padded model's parameters, by the same names."""
        normed = any(name.endswith(".q_norm.weight") for name in state)
        return {name: self._pad(name, tensor, normed) for name, tensor in state.items()}

    def _pad(self, name: str, tensor: torch.Tensor, normed: bool) -> torch.Tensor:
        growth = math.sqrt(self.padded / self.size)
        part = name.split(".")[-2]
        if part == "q_proj" or (part == "k_proj" and normed):
            return self._rows(tensor) * growth
        if part in ("k_proj", "v_proj", "q_norm"):
            return self._rows(tensor)
        if part == "k_norm":
            return self._rows(tensor) / growth
        if part == "o_proj" and tensor.ndim == 2:
            return self._rows(tensor.t()).t()
        return tensor

    def _rows(self, tensor: torch.Tensor) -> torch.Tensor:
        """Zeros after every ``size`` rows."""
        heads = tensor.reshape(-1, self.size, *tensor.shape[1:])
        zeros = heads.new_zeros(len(heads), self.padded - self.size, *tensor.shape[1:])
        return torch.cat((heads, zeros), dim=1).flatten(0, 1)
