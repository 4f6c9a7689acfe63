"""A Hugging Face model's weights, fused and laid out for speed, in one block of memory.

The engine computes with a copy of its own, taken when it starts and at each ``update_weights``: an optimiser step in
the middle of a generation cannot reach it, whatever became of the trainer's storages (``.to()``, sharding) is seen
at the next update, and one block is easy to share with another process.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

import torch

from obsspec_gym.agents.engine.embedded.shape import ModelShape
from obsspec_gym.errors import InvalidArgumentError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_ALIGNMENT = 16
"""Elements; keeps every matrix on a cache line."""


class LayerWeights:
    """One layer's views into the block.

    Attributes:
        norm1: Before attention, twice in a row: see :func:`~obsspec_gym.agents.engine.embedded.model.rms_norm`.
        qkv: ``[hidden, queries, keys, values]``, each head's dimensions in pairs that the rotary embedding turns.
        qk_scale: ``[head, dim]``: the weights of the norms of queries and keys; the queries' with 1/sqrt(dim).
        o: ``[heads x dim, hidden]``.
        norm2: Before the feed-forward part, twice in a row.
        gate_up: ``[hidden, gate, up]``.
        down: ``[feed-forward, hidden]``.
    """

    __slots__ = ("down", "gate_up", "norm1", "norm2", "o", "o_bias", "qk_scale", "qkv", "qkv_bias")

    def __init__(self, shape: ModelShape, block: _Block) -> None:
        self.norm1 = block.take(2 * shape.hidden)
        self.qkv = block.take(shape.hidden, shape.qkv_width)
        self.qkv_bias = block.take(shape.qkv_width) if shape.qkv_bias else None
        self.qk_scale = block.take(shape.heads + shape.kv_heads, shape.head_dim) if shape.qk_norm else None
        self.o = block.take(shape.heads * shape.head_dim, shape.hidden)
        self.o_bias = block.take(shape.hidden) if shape.o_bias else None
        self.norm2 = block.take(2 * shape.hidden)
        self.gate_up = block.take(shape.hidden, 2 * shape.feed_forward)
        self.down = block.take(shape.feed_forward, shape.hidden)


class ModelWeights:
    """All of a model's weights as views into one block.

    Args:
        shape: The model's.
        block: One-dimensional, :meth:`elements` long.
    """

    def __init__(self, shape: ModelShape, block: torch.Tensor) -> None:
        views = _Block(block)
        self.shape = shape
        self.block = block
        self.embed = views.take(shape.vocabulary, shape.hidden)
        self.layers = [LayerWeights(shape, views) for _ in range(shape.layers)]
        self.norm = views.take(2 * shape.hidden)
        self.head = views.take(shape.hidden, shape.vocabulary)
        self.rope = views.take(shape.context, shape.head_dim)
        """Cosine and sine in turn, for each position."""
        self.elements = views.at

    @classmethod
    def allocate(cls, shape: ModelShape, dtype: torch.dtype, device: torch.device) -> ModelWeights:
        """Weights in a new block, still to be loaded."""
        return cls(shape, torch.zeros(cls.size(shape), dtype=dtype, device=device))

    @classmethod
    def size(cls, shape: ModelShape) -> int:
        """How many elements a block needs."""
        return cls(shape, torch.empty(0, device="meta")).elements

    @torch.no_grad()
    def load_rope(self, model: PreTrainedModel) -> None:
        """Copies the rotary embedding, with the model's own arithmetic."""
        positions = torch.arange(self.shape.context, device=model.device)[None]
        probe = torch.empty(1, dtype=self.block.dtype, device=model.device)
        cos, sin = model.model.rotary_emb(probe, positions)
        half = self.shape.head_dim // 2
        pairs = torch.stack((cos[0, :, :half], sin[0, :, :half]), dim=-1)
        self.rope.copy_(pairs.reshape(self.shape.context, -1))

    @torch.no_grad()
    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Copies a model's parameters in; everything is checked before anything is changed.

        Args:
            state: Parameters by Hugging Face's names.

        Raises:
            InvalidArgumentError: If one is missing or of another shape.
        """
        for target, source in self._copies(state):
            target.copy_(source)
        shape, scale = self.shape, self.shape.head_dim**-0.5
        for layer in self.layers:  # the queries' 1/sqrt(dim), folded in
            if layer.qk_scale is not None:
                layer.qk_scale[: shape.heads].mul_(scale)
                continue
            layer.qkv[:, : shape.heads * shape.head_dim].mul_(scale)
            if layer.qkv_bias is not None:
                layer.qkv_bias[: shape.heads * shape.head_dim].mul_(scale)

    def check(self, state: Mapping[str, torch.Tensor]) -> None:
        """Raises what :meth:`load` would raise; changes nothing."""
        self._copies(state)

    def _copies(self, state: Mapping[str, torch.Tensor]) -> _Copies:
        shape, read = self.shape, _Reader(self.shape, state)
        embed = read("model.embed_tokens.weight", shape.vocabulary, shape.hidden)
        head = embed if shape.tied else read("lm_head.weight", shape.vocabulary, shape.hidden)
        copies: _Copies = [(self.embed, embed), (self.head, head.t())]
        for i, layer in enumerate(self.layers):
            copies += _layer_copies(layer, shape, read, f"model.layers.{i}")
        return copies + _twice(self.norm, read("model.norm.weight", shape.hidden))


_Copies: TypeAlias = list[tuple[torch.Tensor, torch.Tensor]]
"""Targets and sources."""


def _layer_copies(layer: LayerWeights, shape: ModelShape, read: _Reader, name: str) -> _Copies:
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    ends = {"q": (0, queries), "k": (queries, queries + keys), "v": (queries + keys, queries + 2 * keys)}
    copies = _twice(layer.norm1, read(f"{name}.input_layernorm.weight", shape.hidden))
    copies += _twice(layer.norm2, read(f"{name}.post_attention_layernorm.weight", shape.hidden))
    for part, (start, stop) in ends.items():
        weight = read(f"{name}.self_attn.{part}_proj.weight", stop - start, shape.hidden)
        copies.append((layer.qkv[:, start:stop], read.paired(weight, part).t()))
        if layer.qkv_bias is not None:
            bias = read(f"{name}.self_attn.{part}_proj.bias", stop - start)
            copies.append((layer.qkv_bias[start:stop], read.paired(bias, part)))
    if layer.qk_scale is not None:
        for part, rows in (("q", slice(0, shape.heads)), ("k", slice(shape.heads, None))):
            norm = read(f"{name}.self_attn.{part}_norm.weight", shape.head_dim)
            copies.append((layer.qk_scale[rows], read.paired(norm, part).expand_as(layer.qk_scale[rows])))
    copies.append((layer.o, read(f"{name}.self_attn.o_proj.weight", shape.hidden, queries).t()))
    if layer.o_bias is not None:
        copies.append((layer.o_bias, read(f"{name}.self_attn.o_proj.bias", shape.hidden)))
    gate = read(f"{name}.mlp.gate_proj.weight", shape.feed_forward, shape.hidden)
    up = read(f"{name}.mlp.up_proj.weight", shape.feed_forward, shape.hidden)
    copies += [(layer.gate_up[:, : shape.feed_forward], gate.t()), (layer.gate_up[:, shape.feed_forward :], up.t())]
    copies.append((layer.down, read(f"{name}.mlp.down_proj.weight", shape.hidden, shape.feed_forward).t()))
    return copies


def _twice(target: torch.Tensor, source: torch.Tensor) -> _Copies:
    half = len(source)
    return [(target[:half], source), (target[half:], source)]


class _Reader:
    """Reads parameters by name, with a sentence for what is missing or of another shape."""

    def __init__(self, shape: ModelShape, state: Mapping[str, torch.Tensor]) -> None:
        self._shape = shape
        self._state = state

    def __call__(self, name: str, *size: int) -> torch.Tensor:
        tensor = self._state.get(name)
        if tensor is None:
            raise InvalidArgumentError(f"expected a parameter named {name!r}, and there is none")
        if tuple(tensor.shape) != size:
            raise InvalidArgumentError(f"expected {name!r} of shape {size}, got {tuple(tensor.shape)}")
        return tensor

    def paired(self, tensor: torch.Tensor, part: str) -> torch.Tensor:
        """Reorders each query's and key's dimensions (0, d/2, 1, d/2 + 1, ...): the pairs that are turned together.

        The rotary embedding is then one product of complex numbers.
        """
        if part == "v":
            return tensor
        halves = tensor.reshape(-1, 2, self._shape.head_dim // 2, *tensor.shape[1:])
        return halves.transpose(1, 2).reshape(tensor.shape)


class _Block:
    """Hands out consecutive, aligned views of a block; of a block without memory it only counts."""

    def __init__(self, block: torch.Tensor) -> None:
        self._block = block
        self.at = 0

    def take(self, *size: int) -> torch.Tensor:
        start, length = self.at, math.prod(size)
        self.at += -(-length // _ALIGNMENT) * _ALIGNMENT
        if self._block.is_meta:
            return self._block.new_empty(size)
        return self._block[start : start + length].view(size)
