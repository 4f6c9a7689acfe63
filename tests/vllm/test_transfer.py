"""vLLM's weight transfer, as far as a machine without a GPU can follow it: what the inference side would be told."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed here: make test-vllm")

import torch
from vllm.distributed.weight_transfer import VLLMWeightSyncClient
from vllm.distributed.weight_transfer.ipc_engine import IPCWeightTransferUpdateInfo

from obsspec_gym.agents.engine.vllm import weights

IPC = "vllm.distributed.weight_transfer.ipc_engine"


class Inference:
    """Notes what it is asked for, as ``AsyncLLM`` is."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.thread = threading.get_ident()

    async def init_weight_transfer_engine(self, request: Any) -> None:
        self.note("init", request.init_info)

    async def start_weight_update(self) -> None:
        self.note("start", None)

    async def update_weights(self, request: Any) -> None:
        self.note("update", request.update_info)

    async def finish_weight_update(self, version: str | None = None) -> None:
        self.note("finish", version)

    def note(self, name: str, value: Any) -> None:
        assert threading.get_ident() == self.thread  # on its own event loop
        self.asked.append((name, value))


def test_the_client_is_what_vllm_asks_for() -> None:
    assert isinstance(weights.TransferClient(Inference(), asyncio.new_event_loop()), VLLMWeightSyncClient)


def test_a_transfer_tells_the_inference_side_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the handles themselves, which only a GPU can make."""

    class Gpu:
        uuid = "GPU-0"

    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Gpu)
    monkeypatch.setattr(torch.cuda, "ipc_collect", lambda: None)
    monkeypatch.setattr(torch.cuda, "device", lambda device: torch.no_grad())
    monkeypatch.setattr(
        "vllm.distributed.weight_transfer.ipc_engine.reduce_tensor",
        lambda tensor: (None, (tuple(tensor.shape), "handle")),
    )
    state = {"a.weight": torch.ones(2, 3), "b.weight": torch.ones(4, dtype=torch.bfloat16)}

    async def main() -> list[tuple[str, Any]]:
        inference = Inference()
        await weights._transfer(inference, state)
        return inference.asked

    (init, told), start, (update, info), finish = asyncio.run(main())
    assert (init, told, start[0], update, finish[0]) == ("init", {"packed": False}, "start", "update", "finish")
    monkeypatch.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")
    read = IPCWeightTransferUpdateInfo(**info)  # as vLLM's process reads it
    assert read.names == list(state)
    assert read.dtype_names == ["float32", "bfloat16"]
    assert read.ipc_handles == [{"GPU-0": ((2, 3), "handle")}, {"GPU-0": ((4,), "handle")}]
