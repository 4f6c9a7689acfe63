"""How new weights get to vLLM: through a file in memory, or on a GPU by vLLM's own transfer."""

from __future__ import annotations

import asyncio
import base64
import pickle
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from safetensors.torch import save_file

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

T = TypeVar("T")
State = Mapping[str, torch.Tensor]

_SHARED_MEMORY = Path("/dev/shm")


async def load(llm: AsyncLLM, state: State | None) -> None:
    """Has vLLM take over weights; nothing may be running.

    Args:
        llm: vLLM.
        state: A model's parameters by Hugging Face's names, all of them; ``None`` for those in its directory.
    """
    if state is None:
        await llm.collective_rpc("receive_weights_file", args=(None,))
    elif all(tensor.is_cuda for tensor in state.values()):
        await _transfer(llm, state)
    else:
        with weights_file(state) as path:
            await llm.collective_rpc("receive_weights_file", args=(str(path),))


@contextmanager
def weights_file(state: State) -> Iterator[Path]:
    """A safetensors file that lives as long as the block: in memory where there is a file system for that."""
    directory = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="obsspec-weights-", dir=directory) as folder:
        path = Path(folder) / "weights.safetensors"
        save_file({name: tensor.cpu().contiguous() for name, tensor in state.items()}, path)
        yield path


async def _transfer(llm: AsyncLLM, state: State) -> None:
    """From one process's GPU memory to the other's, on the same GPU; nothing is copied to the host."""
    from vllm.distributed.weight_transfer import WeightTransferTrainerFactory
    from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

    client = TransferClient(llm, asyncio.get_running_loop())
    device = next(iter(state.values())).device

    def send() -> None:
        with torch.cuda.device(device):
            # All that it asks of a source of weights is to be iterated over.
            sender = WeightTransferTrainerFactory.trainer_init(
                IPCTrainerInitInfo(rank=0), client=client, source=state.items()
            )
            sender.send_weights()

    await asyncio.to_thread(send)


@dataclass(frozen=True, slots=True)
class TransferClient:
    """What vLLM's transfer asks the inference side to do: four calls that block the thread they are made in.

    Attributes:
        llm: The inference side.
        loop: Its event loop, which runs in another thread.
    """

    llm: AsyncLLM
    loop: asyncio.AbstractEventLoop

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Once, before the first transfer."""
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        self._wait(lambda: self.llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info)))

    def start_weight_update(self) -> None:
        """Before the weights."""
        self._wait(self.llm.start_weight_update)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Here they are: handles of this process's memory, as the text that vLLM's messages can carry."""
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        info = dict(update_info)
        handles = base64.b64encode(pickle.dumps(info.pop("ipc_handles"))).decode()
        request = WeightTransferUpdateRequest({**info, "ipc_handles_pickled": handles})
        self._wait(lambda: self.llm.update_weights(request))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """After the weights."""
        self._wait(lambda: self.llm.finish_weight_update(weight_version))

    def _wait(self, call: Callable[[], Awaitable[T]]) -> T:
        async def called() -> T:
            return await call()

        return asyncio.run_coroutine_threadsafe(called(), self.loop).result()
