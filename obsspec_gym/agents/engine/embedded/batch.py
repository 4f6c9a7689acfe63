"""The rows of one step, packed: row ``i`` is one token at one position of one request.

Letters in shape comments: N rows, B requests, Q rows of each request, H heads, K kv heads, G = H/K, M = Q G padded,
D head dimensions, L key length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from obsspec_gym.agents.engine.embedded.kv import KVRows, Row, SizeClass
from obsspec_gym.agents.engine.embedded.shape import ModelShape

ROW_QUANTUM = 4
"""Matrix products run on multiples of so many rows: then a row's result does not depend on how many others there
are (below, BLAS libraries change to other kernels). The second of the two rules that make results bit-equal."""


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive tokens of one request that a step computes.

    Attributes:
        row: Where the request's keys and values are.
        start: Position of the first token.
        tokens: The token ids.
        wanted: How many of the last tokens need logits.
    """

    row: Row
    start: int
    tokens: Sequence[int]
    wanted: int


def padded(count: int) -> int:
    """The next multiple of :data:`ROW_QUANTUM`."""
    return -(-count // ROW_QUANTUM) * ROW_QUANTUM


class Batch:
    """The rows of one step, and every view that the layers need, made once.

    A batch in which every request has one row can be advanced by one token, which costs next to nothing.

    Args:
        spans: At least one; each within its row's size class.
        shape: The model's.
        rows: Where keys and values are.
    """

    def __init__(self, spans: Sequence[Span], shape: ModelShape, rows: KVRows) -> None:
        # Spans of one size class together, those of one length together, rows in order: neighbours share a product.
        order = sorted(
            range(len(spans)), key=lambda i: (spans[i].row.size_class, len(spans[i].tokens), spans[i].row.index)
        )
        self._order = order
        spans = [spans[i] for i in order]
        self.count = sum(len(s.tokens) for s in spans)
        n = padded(self.count)
        dtype, device = rows.classes[0].data.dtype, rows.classes[0].data.device
        self._host_ids = np.zeros(n, dtype=np.int64)
        self._host_positions = np.zeros(n, dtype=np.int64)
        self._host_ids[: self.count] = [token for s in spans for token in s.tokens]
        self._host_positions[: self.count] = np.concatenate(
            [np.arange(s.start, s.start + len(s.tokens)) for s in spans]
        )
        self._device = device
        self.x2 = torch.zeros((n, 2 * shape.hidden), dtype=dtype, device=device)
        self.x, self.minus_x = self.x2[:, : shape.hidden], self.x2[:, shape.hidden :]
        self.qkv = torch.empty((n, shape.qkv_width), dtype=dtype, device=device)
        qk = self.qkv[:, : shape.qk_width]
        self.qk = qk.view(n, shape.heads + shape.kv_heads, shape.head_dim)
        self.qk_complex = torch.view_as_complex(qk.view(n, shape.heads + shape.kv_heads, -1, 2))
        self.kv = self.qkv[:, shape.heads * shape.head_dim :]
        self.attention = torch.zeros((n, shape.heads * shape.head_dim), dtype=dtype, device=device)
        self.gate_up = torch.empty((n, 2 * shape.feed_forward), dtype=dtype, device=device)
        self.gate, self.up = self.gate_up[:, : shape.feed_forward], self.gate_up[:, shape.feed_forward :]
        self.activation = torch.empty((n, shape.feed_forward), dtype=dtype, device=device)
        self._upload()
        self.groups = self._groups(spans, shape, rows)
        self._place(spans, order)

    def _upload(self) -> None:
        self.ids = torch.from_numpy(self._host_ids).to(self._device)
        self.positions = torch.from_numpy(self._host_positions).to(self._device)

    def _groups(self, spans: Sequence[Span], shape: ModelShape, rows: KVRows) -> list[_Group]:
        groups: list[_Group] = []
        first = at = 0
        for i, span in enumerate(spans):
            at += len(span.tokens)
            if i + 1 == len(spans) or spans[i + 1].row.size_class != span.row.size_class:
                begin = at - sum(len(s.tokens) for s in spans[first : i + 1])
                size_class = rows.classes[span.row.size_class]
                groups.append(_Group(self, spans[first : i + 1], begin, shape, size_class))
                first = i + 1
        return groups

    def _place(self, spans: Sequence[Span], order: Sequence[int]) -> None:
        """Which rows need logits, in the order in which the spans were given."""
        wanted: dict[int, range] = {}
        at = 0
        for span, original in zip(spans, order, strict=True):
            at += len(span.tokens)
            wanted[original] = range(at - span.wanted, at)
        self.wanted = [row for original in range(len(order)) for row in wanted[original]]
        self.all_wanted = self.wanted == list(range(self.count))
        select = self.wanted + [0] * (padded(len(self.wanted)) - len(self.wanted))
        self.select = torch.tensor(select, dtype=torch.int64, device=self._device)

    def advance(self, tokens: Sequence[int]) -> None:
        """Takes every request one token further; each must have one row, and room in it.

        Args:
            tokens: The next token of each span, in the order in which the spans were given.
        """
        self._host_ids[: self.count] = [tokens[i] for i in self._order]
        self._host_positions[: self.count] += 1
        if self._device.type != "cpu":  # on the CPU the tensors share this memory
            self._upload()
        for group in self.groups:
            group.advance()


class _Group:
    """The rows of a batch whose requests are in one size class."""

    def __init__(self, batch: Batch, spans: Sequence[Span], begin: int, shape: ModelShape, where: SizeClass) -> None:
        self.where = where
        count = sum(len(s.tokens) for s in spans)
        self.span = (begin, begin + count)
        self.source = batch.kv[begin : begin + count]
        self.dim = shape.head_dim
        rows = np.repeat([s.row.index for s in spans], [len(s.tokens) for s in spans])
        heads = np.arange(2 * shape.kv_heads)
        kv, head = heads // shape.kv_heads, heads % shape.kv_heads
        lines = (kv * where.rows + rows[:, None]) * shape.kv_heads + head
        positions = batch._host_positions[begin : begin + count]
        self.targets = torch.from_numpy((lines * where.length + positions[:, None]).ravel()).to(batch.ids.device)
        self.attends = []
        first = 0
        for i, span in enumerate(spans):
            begin += len(span.tokens)
            following = spans[i + 1] if i + 1 < len(spans) else None
            if following is None or not _neighbours(span, following):
                run = spans[first : i + 1]
                rows_of_run = sum(len(s.tokens) for s in run)
                self.attends.append(_Attend(batch, run, begin - rows_of_run, shape, where))
                first = i + 1

    def advance(self) -> None:
        """Every request's next token."""
        self.targets += 1
        for attend in self.attends:
            attend.advance()

    def write(self, layer: int) -> None:
        """Stores the rows' keys and values."""
        self.where.flat[layer].index_copy_(0, self.targets, self.source.reshape(-1, self.dim))


def _neighbours(one: Span, other: Span) -> bool:
    return other.row.index == one.row.index + 1 and len(other.tokens) == len(one.tokens)


class _Attend:
    """Attention of B requests in neighbouring rows, Q rows each, as one batched product."""

    def __init__(self, batch: Batch, spans: Sequence[Span], begin: int, shape: ModelShape, where: SizeClass) -> None:
        b, q, k, g, d = len(spans), len(spans[0].tokens), shape.kv_heads, shape.heads // shape.kv_heads, shape.head_dim
        m = padded(q * g)
        self._rows = slice(begin, begin + b * q)
        self._lines = slice(spans[0].row.index * k, (spans[0].row.index + b) * k)
        self._length = where.length
        self._sizes = (b, q, k, g, m)
        rows = self._rows
        self._source = batch.qkv[rows, : k * g * d].view(b, q, k, g, d).permute(0, 2, 1, 3, 4)
        self._target = batch.attention[rows].view(b, q, k, g, d).permute(0, 2, 1, 3, 4)
        queries = torch.zeros((b, k, m, d), dtype=batch.x2.dtype, device=batch.ids.device)
        self._queries_in = queries[:, :, : q * g].view(b, k, q, g, d)
        self._queries = queries.view(b * k, m, d)
        self._out = torch.empty_like(queries)
        self._out_flat = self._out.view(b * k, m, d)
        self._out_used = self._out[:, :, : q * g].view(b, k, q, g, d)
        # One view a layer: making them anew at each step would cost as much as the arithmetic.
        self._keys = [keys[self._lines] for keys in where.keys]
        self._values = [values[self._lines] for values in where.values]
        self._bias = self._hide_later(batch.positions)
        # For requests with one row: each row's position, once for each kv head.
        self._last = batch.positions[rows].repeat_interleave(k)[:, None] if q == 1 else None

    def advance(self) -> None:
        """Reveals one more position to each request."""
        assert self._last is not None, "only requests with one row can be advanced"
        self._last += 1
        self._bias.view(self._last.shape[0], -1).scatter_(1, self._last, 0.0)

    def _hide_later(self, positions: torch.Tensor) -> torch.Tensor:
        """The bias that hides later positions, ``[B K, M or 1, L]``."""
        b, q, k, g, m = self._sizes
        later = torch.arange(self._length, device=positions.device) > positions[self._rows].view(b, q, 1)
        bias = torch.zeros(later.shape, dtype=self._queries.dtype, device=later.device).masked_fill_(later, -torch.inf)
        if q == 1:
            return bias.repeat_interleave(k, dim=0)
        full = torch.zeros((b, k, m, self._length), dtype=bias.dtype, device=bias.device)
        full[:, :, : q * g].view(b, k, q, g, -1).copy_(bias[:, None, :, None])
        return full.view(b * k, m, -1)

    def __call__(self, layer: int) -> None:
        self._queries_in.copy_(self._source)
        scores = torch.baddbmm(self._bias, self._queries, self._keys[layer])
        torch.bmm(torch.softmax(scores, dim=-1), self._values[layer], out=self._out_flat)
        self._target.copy_(self._out_used)
