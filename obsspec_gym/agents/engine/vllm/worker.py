"""What this package adds to vLLM's worker; runs in vLLM's process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class WeightReceiver:
    """Mixed into vLLM's worker class, which has ``model_runner`` and ``reload_weights``."""

    def receive_weights_file(self: Any, path: str | None) -> None:
        """Takes over weights.

        Args:
            path: A safetensors file with parameters by Hugging Face's names, all of them; ``None`` reads the
                model's directory again.
        """
        self.reload_weights(weights_iterator=None if path is None else _tensors(path))


def _tensors(path: str) -> Iterator[tuple[str, torch.Tensor]]:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 - not a mapping
            yield name, file.get_tensor(name)
