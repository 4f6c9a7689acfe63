"""What this package adds to vLLM's worker; runs in vLLM's process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from obsspec_gym.agents.engine.vllm.rows import Quanta


class WorkerExtension:
    """Mixed into vLLM's worker class, which has ``device``, ``model_runner`` and ``reload_weights``."""

    quanta: Quanta | None = None
    """Where rows are to be independent: what :class:`~obsspec_gym.agents.engine.vllm.rows.IndependentRows` found."""

    def make_rows_independent(self: Any) -> None:
        """Has the model's linear layers compute each row alike, whatever the number of rows; from now on."""
        self.quanta = {}
        _make_rows_independent(self.model_runner.get_model(), self.quanta)

    def receive_weights_file(self: Any, path: str | None) -> None:
        """Takes over weights.

        Args:
            path: A safetensors file with parameters by Hugging Face's names, all of them; ``None`` reads the
                model's directory again.
        """
        self.reload_weights(weights_iterator=None if path is None else _tensors(path))
        if self.device.type == "cpu":
            _pack_output_layers(self.model_runner.get_model())
        if self.quanta is not None:  # loading gave layers new functions
            _make_rows_independent(self.model_runner.get_model(), self.quanta)


def _tensors(path: str) -> Iterator[tuple[str, torch.Tensor]]:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 - not a mapping
            yield name, file.get_tensor(name)


def _pack_output_layers(model: torch.nn.Module) -> None:
    """Has output layers compute with their weights as they are now.

    On the CPU vLLM multiplies with a packed copy of each layer's weights, made when weights of that layer are loaded.
    An output layer that is tied to the embeddings is loaded no weights of its own, and would keep the old copy.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    for layer in model.modules():
        if isinstance(layer, ParallelLMHead):
            layer.quant_method.process_weights_after_loading(layer)


def _make_rows_independent(model: torch.nn.Module, quanta: Quanta) -> None:
    from obsspec_gym.agents.engine.vllm.rows import IndependentRows

    for layer in model.modules():
        linear = getattr(layer, "cpu_linear", None)  # what vLLM's layers multiply with on the CPU
        if linear is not None and not isinstance(linear, IndependentRows):
            layer.cpu_linear = IndependentRows(linear, quanta)  # type: ignore[assignment]  # not a module
