"""How vLLM is started."""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING

from obsspec_gym.agents.engine.vllm.metrics import SchedulerMetrics
from obsspec_gym.agents.engine.vllm.settings import Settings, Shape
from obsspec_gym.agents.engine.vllm.source import Source, State
from obsspec_gym.agents.engine.vllm.weights import load

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM


async def launch(
    settings: Settings, source: Source, shape: Shape, metrics: SchedulerMetrics, state: State | None
) -> AsyncLLM:
    """Starts vLLM on the running event loop, with its first weights.

    Args:
        settings: How it runs.
        source: Its model.
        shape: The model's.
        metrics: Is kept up to date from now on.
        state: Its parameters; ``None`` for those in its directory.
    """
    # In a thread, for its own stack: what is imported there keeps the frames that import it, and all they know.
    await asyncio.to_thread(_import, settings)
    with settings.environment(), source.directory() as directory:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        arguments = settings.arguments(directory, shape, load=source.is_read_by_vllm)
        llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments), stat_loggers=[lambda *_: metrics])
    try:
        cache = llm.vllm_config.cache_config
        metrics.capacity_tokens = cache.num_gpu_blocks * cache.block_size
        if state is not None:
            await load(llm, state)
        if settings.row_independent:
            await llm.collective_rpc("make_rows_independent")
    except BaseException:  # a cancellation, too, leaves nobody else to end it
        llm.shutdown()
        raise
    return llm


def _import(settings: Settings) -> None:
    with settings.environment():  # vLLM reads some of it once
        import_module("vllm.v1.engine.async_llm")
