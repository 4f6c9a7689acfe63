"""New weights, by way of a directory that the servers read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from obsspec_gym.agents.engine.servers.client import ServerClient
from obsspec_gym.errors import EngineError, MissingExtraError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class WeightReload:
    """How servers are given new weights: a file that they can read, and what they are asked to do with it.

    Attributes:
        directory: Where the servers read the model from; on a disk that they share with the trainer. The weights are
            written there as ``model.safetensors``.
        requests: What is sent to each server, in order: a path and the body of a POST. They should leave nothing of
            the old weights' prefix cache.
        at_last: A path to which is posted in the end, also if one of the requests fails.

    Example:
        >>> WeightReload.sglang(Path("/models/policy")).requests[0][0]
        '/update_weights_from_disk'
    """

    directory: Path
    requests: tuple[tuple[str, Mapping[str, Any] | None], ...]
    at_last: str | None = None

    @classmethod
    def vllm(cls, directory: Path) -> WeightReload:
        """For vLLM servers of that directory's model, started with ``VLLM_SERVER_DEV_MODE=1``."""
        return cls(
            directory,
            (
                ("/pause?mode=abort", None),
                ("/collective_rpc", {"method": "reload_weights"}),
                ("/reset_prefix_cache", None),
            ),
            at_last="/resume",
        )

    @classmethod
    def sglang(cls, directory: Path) -> WeightReload:
        """For SGLang servers."""
        body = {"model_path": str(directory), "flush_cache": True, "abort_all_requests": True}
        return cls(directory, (("/update_weights_from_disk", body),))

    def write(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Puts the weights where the servers read them; whoever reads meanwhile sees the old ones or the new.

        Raises:
            MissingExtraError: If safetensors is not installed.
        """
        try:
            from safetensors.torch import save_file
        except ImportError as error:
            raise MissingExtraError("safetensors", "lm") from error

        tensors: dict[str, torch.Tensor] = {}
        stored = set[int]()
        for name, tensor in weights.items():
            tensor = tensor.detach().cpu().contiguous()
            # A file of this format holds no tensor twice: tied ones become copies.
            tensors[name] = tensor.clone() if tensor.data_ptr() in stored else tensor
            stored.add(tensor.data_ptr())
        written = self.directory / "model.safetensors.new"
        save_file(tensors, written, metadata={"format": "pt"})
        written.replace(self.directory / "model.safetensors")

    async def ask(self, client: ServerClient) -> None:
        """Has one server read them.

        Raises:
            EngineError: If it does not.
        """
        try:
            for path, body in self.requests:
                answer = await client.post(path, body)
                if isinstance(answer, dict) and answer.get("success") is False:
                    raise EngineError(f"{client.url}{path}: {answer.get('message', 'failed')}")
        finally:
            if self.at_last is not None:
                await client.post(self.at_last)
