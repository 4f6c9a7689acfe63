"""Linear layers of which a row comes out the same whatever the number of rows; runs in vLLM's process."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch.nn.functional import pad

_log = logging.getLogger(__name__)

CHUNK = 64
"""At most so many rows are multiplied at once; more are no faster on the processors this was tried on."""
QUANTA = (2, 4, 8, 16, 32, CHUNK)
"""Not 1: a row alone takes as long as two, and is where oneDNN adds in another order first."""

Product = Callable[[torch.Tensor], torch.Tensor]
"""Rows ``(count, inputs)`` to rows ``(count, outputs)``."""
Linear = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
"""Inputs ``(..., inputs)``, weights and bias to outputs ``(..., outputs)``, as vLLM's layers on the CPU have it."""
Quanta = dict[tuple[int, int, bool], int]
"""By inputs, outputs, and whether there is a bias."""


class IndependentRows:
    """A linear layer that is asked only for numbers of rows at which it adds in the same order.

    In which parts a sum is added up, a library chooses by the number of rows, the processor and its caches, so a row
    of one product can differ in its last bits from the same row of another: with oneDNN, a row alone from one beside
    others. Rows are therefore padded to a quantum, and multiplied in parts of at most :data:`CHUNK`. Which quantum
    does, nobody promises: it is found out at the first call.

    Args:
        linear: The layer.
        quanta: What was found for layers so far, by their sizes; what is found here is added.
    """

    def __init__(self, linear: Linear, quanta: Quanta) -> None:
        self._linear = linear
        self._quanta = quanta
        self._quantum: int | None = None

    def __call__(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """The layer's outputs, ``(..., outputs)``, for inputs ``(..., inputs)``."""

        def product(rows: torch.Tensor) -> torch.Tensor:
            return self._linear(rows, weight, bias)

        if self._quantum is None:
            sizes = (x.shape[-1], product(x.new_zeros(CHUNK, x.shape[-1])).shape[-1], bias is not None)
            if sizes not in self._quanta:
                self._quanta[sizes] = find_quantum(product, x.shape[-1], x.dtype)
            self._quantum = self._quanta[sizes]
        rows = x.reshape(-1, x.shape[-1])
        padded = pad(rows, (0, 0, 0, -len(rows) % self._quantum))
        outputs = torch.cat([product(part) for part in torch.split(padded, CHUNK)])
        return outputs[: len(rows)].reshape(*x.shape[:-1], outputs.shape[-1])


def find_quantum(product: Product, inputs: int, dtype: torch.dtype) -> int:
    """The smallest quantum of whose multiples each, up to :data:`CHUNK`, gives every row the same bits.

    There always is one, for ``CHUNK`` rows are computed as ``CHUNK`` rows are. That a row is the same at another
    place among them is probed too; where it is not, there is nothing to be done, and a warning says so.

    Args:
        product: What is probed, with random rows.
        inputs: Numbers in a row.
        dtype: Theirs.
    """
    x = torch.randn(CHUNK, inputs, generator=torch.Generator().manual_seed(0), dtype=dtype)
    full = product(x)
    if not torch.equal(product(x.flip(0).contiguous()).flip(0), full):
        _log.warning(
            "on this processor a row of a %d x %d product depends on its place among others: "
            "a completion can, rarely, depend on what else is generated",
            *full.shape[1:],
            inputs,
        )
    smallest = QUANTA[0]
    others = [n for n in range(smallest, CHUNK, smallest) if not torch.equal(product(x[:n]), full[:n])]
    return next(quantum for quantum in QUANTA if not any(n % quantum == 0 for n in others))
