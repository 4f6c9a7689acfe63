"""One forward pass over a packed batch, for models of the Llama and Qwen families."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from obsspec_gym.agents.engine.embedded.batch import ROW_QUANTUM, Batch
from obsspec_gym.agents.engine.embedded.weights import ModelWeights


class LeanModel:
    """The forward pass.

    Args:
        weights: Read at each pass: whoever changes them does so between two.
    """

    def __init__(self, weights: ModelWeights) -> None:
        self.weights = weights
        self.shape = weights.shape
        block = weights.block
        self._eps = torch.full((1,), self.shape.norm_eps, dtype=block.dtype, device=block.device)
        self._rope = torch.view_as_complex(weights.rope.view(self.shape.context, 1, -1, 2))

    def forward(self, batch: Batch) -> torch.Tensor:
        """Computes a batch; stores keys and values.

        Returns:
            Logits of the wanted rows and then of padding rows, ``[row, token]``.
        """
        weights, x = self.weights, batch.x
        x.copy_(torch.index_select(weights.embed, 0, batch.ids))
        turn = torch.index_select(self._rope, 0, batch.positions)
        for i, layer in enumerate(weights.layers):
            project(self._norm(batch, layer.norm1), layer.qkv, layer.qkv_bias, batch.qkv)
            if layer.qk_scale is not None:
                self._normalise_heads(batch.qk, layer.qk_scale)
            batch.qk_complex.mul_(turn)
            for group in batch.groups:
                group.write(i)
                for attend in group.attends:
                    attend(i)
            x.addmm_(batch.attention, layer.o)
            if layer.o_bias is not None:
                x.add_(layer.o_bias)
            torch.mm(self._norm(batch, layer.norm2), layer.gate_up, out=batch.gate_up)
            torch.mul(F.silu(batch.gate, inplace=True), batch.up, out=batch.activation)
            x.addmm_(batch.activation, layer.down)
        last = self._norm(batch, weights.norm)
        if not batch.all_wanted:
            last = torch.index_select(last, 0, batch.select)
        return torch.mm(last, weights.head)

    def _norm(self, batch: Batch, weight: torch.Tensor) -> torch.Tensor:
        """RMS norm of x as the layer norm of (x, -x), whose mean is 0 and whose variance is x's mean square.

        A layer norm is one kernel; an RMS norm is half a dozen, which is most of the cost at these sizes.
        """
        torch.neg(batch.x, out=batch.minus_x)
        both = torch.layer_norm(batch.x2, (weight.shape[0],), weight, None, self.shape.norm_eps)
        return both[:, : self.shape.hidden]

    def _normalise_heads(self, qk: torch.Tensor, scale: torch.Tensor) -> None:
        """RMS norm of every query and key, in place, times its weight."""
        norm = torch.linalg.vector_norm(qk, dim=-1, keepdim=True)
        qk.mul_(torch.addcmul(self._eps, norm, norm, value=1 / self.shape.head_dim).rsqrt_()).mul_(scale)


def project(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor) -> None:
    """``out = x @ weight (+ bias)``."""
    if bias is None:
        torch.mm(x, weight, out=out)
    else:
        torch.addmm(bias, x, weight, out=out)


def rows_are_independent(weights: ModelWeights) -> bool:
    """Whether a row's result is the same bits whatever the number of rows, as long as that is padded.

    It is for the BLAS libraries this was tried with; nobody promises it, so it is probed.
    """
    shape, block, layer = weights.shape, weights.block, weights.layers[0]
    noise = torch.Generator(device=block.device).manual_seed(0)

    def random(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=noise, dtype=block.dtype, device=block.device)

    def holds(product: Callable[[torch.Tensor], torch.Tensor], rows: torch.Tensor) -> bool:
        full = product(rows)
        return all(
            torch.equal(product(rows[..., :n, :].contiguous()), full[..., :n, :])
            for n in range(ROW_QUANTUM, rows.shape[-2], ROW_QUANTUM)
        )

    keys = random(shape.kv_heads, 128, shape.head_dim)
    matrices = (layer.qkv, layer.o, layer.gate_up, layer.down, weights.head)
    return (
        all(holds(lambda x, w=w: x @ w, random(32, w.shape[0])) for w in matrices)  # type: ignore[misc]  # mypy cannot infer such lambdas
        and holds(lambda q: torch.bmm(q, keys.transpose(1, 2)), random(shape.kv_heads, 32, shape.head_dim))
        and holds(lambda p: torch.bmm(p, keys), random(shape.kv_heads, 32, 128))
    )
