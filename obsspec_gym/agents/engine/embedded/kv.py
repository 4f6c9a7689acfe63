"""Where running requests keep their keys and values: rows, in size classes.

A row of class ``L`` holds up to ``L`` tokens, and the rows of one class lie side by side, so one batched matrix
product serves all requests of a class. A request moves to the next class when it outgrows its own (a copy, at most
log2 times in its life). The class, and with it the length that attention sums over, depends on a token's
*position* alone: that is one of the two rules that make results bit-equal whatever else is in the batch.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

import torch

from obsspec_gym.agents.engine.embedded.shape import ModelShape

_SMALLEST = 64
_FIRST_ROWS = 4
_GROWTH_BYTES = 256 * 2**20
"""Rows are doubled up to this much memory, and then added by as much as fits into it, at least one."""


def row_length(tokens: int) -> int:
    """The length of the smallest row that holds this many tokens."""
    return max(_SMALLEST, 1 << (tokens - 1).bit_length())


@dataclass(frozen=True, slots=True)
class Row:
    """One row: the class's index and the row's within it."""

    size_class: int
    index: int


class SizeClass:
    """The rows of one length.

    Attributes:
        length: Tokens a row holds.
        rows: How many rows there are; grows as needed.
        data: ``[layer, K/V, row, kv head, token, dim]``.
        flat: For each layer, ``[K/V x row x kv head x token, dim]``: for writing.
        keys: For each layer, ``[row x kv head, dim, token]``: for the scores.
        values: For each layer, ``[row x kv head, token, dim]``.
    """

    def __init__(self, shape: ModelShape, length: int, dtype: torch.dtype, device: torch.device) -> None:
        self.length = length
        self.rows = 0
        self._shape = shape
        self._free: list[int] = []
        self.data = torch.zeros(self._size(0), dtype=dtype, device=device)
        self.flat: list[torch.Tensor] = []
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []

    def take(self) -> int:
        """A free row: the lowest, so that rows in use stay together."""
        if not self._free:
            self._grow()
        return heapq.heappop(self._free)

    def free(self, index: int) -> None:
        """Gives a row back."""
        heapq.heappush(self._free, index)

    def _size(self, rows: int) -> tuple[int, ...]:
        s = self._shape
        return (s.layers, 2, rows, s.kv_heads, self.length, s.head_dim)

    def _grow(self) -> None:
        old = self.rows
        row_bytes = math.prod(self._size(1)) * self.data.element_size()
        rows = old + max(1, min(max(_FIRST_ROWS, old), _GROWTH_BYTES // row_bytes))
        # Zeros, because attention multiplies what lies beyond a row's last token by 0, and 0 * NaN is NaN.
        data = torch.zeros(self._size(rows), dtype=self.data.dtype, device=self.data.device)
        data[:, :, :old] = self.data
        self.data, self.rows = data, rows
        self._free = list(range(old, rows))
        dim, batch = self._shape.head_dim, rows * self._shape.kv_heads
        layers = range(self._shape.layers)
        self.flat = [data[i].view(-1, dim) for i in layers]
        self.keys = [data[i, 0].view(batch, self.length, dim).transpose(1, 2) for i in layers]
        self.values = [data[i, 1].view(batch, self.length, dim) for i in layers]


class KVRows:
    """All rows of all size classes.

    Args:
        shape: The model's.
        dtype: Of keys and values.
        device: Where they live.
    """

    def __init__(self, shape: ModelShape, dtype: torch.dtype, device: torch.device) -> None:
        count = (row_length(shape.context) // _SMALLEST).bit_length()
        self.classes = [SizeClass(shape, _SMALLEST << i, dtype, device) for i in range(count)]

    def take(self, tokens: int) -> Row:
        """A row that holds this many tokens."""
        size_class = (row_length(tokens) // _SMALLEST).bit_length() - 1
        return Row(size_class, self.classes[size_class].take())

    def free(self, row: Row) -> None:
        """Gives a row back."""
        self.classes[row.size_class].free(row.index)

    def moved(self, row: Row, tokens: int, capacity: int) -> Row:
        """Moves the first ``tokens`` of a row to a row that holds ``capacity`` tokens."""
        new = self.take(capacity)
        self.write(new, 0, self.view(row, 0, tokens))
        self.free(row)
        return new

    def view(self, row: Row, start: int, stop: int) -> torch.Tensor:
        """Keys and values of some tokens, ``[layer, K/V, kv head, token, dim]``, not copied."""
        return self.classes[row.size_class].data[:, :, row.index, :, start:stop]

    def write(self, row: Row, start: int, kv: torch.Tensor) -> None:
        """Copies keys and values in."""
        self.view(row, start, start + kv.shape[3]).copy_(kv)
