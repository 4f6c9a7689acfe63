"""Muon for matrices and AdamW for everything else, in float32."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor, nn

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5


class Muon(torch.optim.Optimizer):
    """Momentum whose update is made orthogonal. Matrices of one shape are treated together, in float32.

    ``torch.optim.Muon`` does the same in bfloat16, which processors without bfloat16 units emulate many times slower.

    Args:
        parameters: Matrices.
        lr: Learning rate.
        momentum: Nesterov momentum.
        weight_decay: Decoupled, times the learning rate.
    """

    def __init__(
        self, parameters: list[nn.Parameter], lr: float, momentum: float = 0.95, weight_decay: float = 0.1
    ) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # torch's takes a closure that returns a loss
        """One update."""
        for group in self.param_groups:
            shapes: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
            for parameter in group["params"]:
                shapes[parameter.shape].append(parameter)
            for (rows, columns), alike in shapes.items():
                updates = orthogonal(torch.stack([self._momentum(p, group["momentum"]) for p in alike]))
                rate = group["lr"] * max(1.0, rows / columns) ** 0.5
                for parameter, update in zip(alike, updates, strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update, alpha=rate)

    def _momentum(self, parameter: nn.Parameter, momentum: float) -> Tensor:
        gradient, state = parameter.grad, self.state[parameter]
        assert gradient is not None
        buffer = state.setdefault("momentum", torch.zeros_like(parameter))
        buffer.lerp_(gradient, 1 - momentum)
        return gradient.lerp(buffer, momentum)


def orthogonal(matrices: Tensor) -> Tensor:
    """The nearest (semi-)orthogonal matrices, roughly, by Newton and Schulz's iteration.

    Args:
        matrices: Shape (n, rows, columns).
    """
    a, b, c = _COEFFICIENTS
    wide = matrices if matrices.shape[1] <= matrices.shape[2] else matrices.mT
    x = wide / wide.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(_ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x if wide is matrices else x.mT


def optimizers(model: nn.Module, matrix_rate: float, other_rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for embeddings and norms."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    return [
        Muon(matrices, matrix_rate),
        torch.optim.AdamW(others, lr=other_rate, betas=(0.9, 0.98), weight_decay=0.01),
    ]
