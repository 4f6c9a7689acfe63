"""``VLLMEngine``: the engine protocol on vLLM."""

from __future__ import annotations

import asyncio
import functools
import itertools
import weakref
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from obsspec_gym.agents.engine.arguments import as_token_ids, check_prompt, check_seed
from obsspec_gym.agents.engine.base import Capabilities, EngineLoad, Weights
from obsspec_gym.agents.engine.embedded.inbox import Inbox
from obsspec_gym.agents.engine.vllm.launch import launch
from obsspec_gym.agents.engine.vllm.metrics import SchedulerMetrics
from obsspec_gym.agents.engine.vllm.requests import Request
from obsspec_gym.agents.engine.vllm.service import Service
from obsspec_gym.agents.engine.vllm.settings import DtypeName, OwnDrafts, Settings, Shape
from obsspec_gym.agents.engine.vllm.source import Source
from obsspec_gym.agents.engine.vllm.weights import load
from obsspec_gym.agents.generation import Generation
from obsspec_gym.errors import ClosedError, EngineError, InvalidArgumentError, MissingExtraError
from obsspec_gym.types import Completion, Hint, Priority, Sampling

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# vLLM raises lower temperatures to this one, so they are refused here.
_LOWEST_TEMPERATURE = 0.01


class VLLMEngine:
    """Generates with vLLM, in this program: vLLM's front end in a thread, its model in a process of its own.

    What it does with the arguments of :meth:`submit`: a seed gives the request random numbers of its own; a
    speculative request stands behind committed ones in vLLM's queue and is the first to lose its memory; ``hint`` is
    not needed, since prefixes are recognised by their tokens; a ``draft`` is refused (``capabilities.drafts``).

    A program that uses it must be importable without running (``if __name__ == "__main__":``): vLLM starts its
    process by spawning.

    Args:
        model_or_path: A directory with a model, or a transformers model, whose weights are taken when vLLM starts
            and at each :meth:`update_weights`.
        weights: Parameters by Hugging Face's names, where they are not the model's own: it may be one with adapters.
        dtype: What vLLM computes in.
        own_drafts: Has vLLM guess ahead itself: ``"ngram"`` from the request's own tokens, ``"suffix"`` from what
            others have generated too. Greedy completions are the same, sampled ones are equal in distribution only:
            ``capabilities.addressed_noise`` is false then.
        context: A smaller bound on prompt and completion together than the model's, in tokens.
        max_running: Requests that run at once; further ones wait. A committed request does not displace a running
            speculative one, so this had better not be scarce.
        max_batch_tokens: Tokens in one step: bounds how long a step takes.
        kv_cache_bytes: Memory for keys and values; by default 256 MiB on a CPU (more for a large model), and on a
            GPU what vLLM takes.
        threads: CPU threads of vLLM's process.
        device: ``"cuda:1"`` has it use that GPU; by default it takes the first one, or the CPU where there is none.
        vllm_options: Further arguments of vLLM's ``AsyncEngineArgs``, by their names; they go first.

    Raises:
        MissingExtraError: If vLLM is not installed.
        InvalidArgumentError: If there is no such model, or an argument is out of range.

    Example:
        >>> with VLLMEngine("path/to/model") as engine:  # doctest: +SKIP
        ...     async def main():
        ...         return await engine.submit([1, 2, 3], Sampling(max_tokens=5), seed=0)
        ...     completion = asyncio.run(main())
    """

    def __init__(
        self,
        model_or_path: PreTrainedModel | str | Path,
        *,
        weights: Weights | None = None,
        dtype: DtypeName = "float32",
        own_drafts: OwnDrafts | None = None,
        context: int | None = None,
        max_running: int = 64,
        max_batch_tokens: int = 2048,
        kv_cache_bytes: int | None = None,
        threads: int = 1,
        device: str | None = None,
        vllm_options: Mapping[str, Any] | None = None,
    ) -> None:
        if find_spec("vllm") is None:
            raise MissingExtraError("vllm", "vllm")
        self._settings = Settings(
            dtype, own_drafts, max_running, max_batch_tokens, kv_cache_bytes, threads, device, vllm_options or {}
        )
        self._source = Source.of(model_or_path, on_cpu=self._settings.on_cpu)
        self._shape = Shape.of(self._source.config, context)
        self._closed = False
        self._numbers = itertools.count()
        self._inbox = Inbox()
        self._metrics = SchedulerMetrics()
        state = self._source.state(weights)
        start = functools.partial(launch, self._settings, self._source, self._shape, self._metrics, state)
        self._service = Service(start, self._inbox, self._metrics)
        self._finalizer = weakref.finalize(self, _release, self._service, self._inbox)

    @property
    def capabilities(self) -> Capabilities:
        """Everything but drafts; addressed noise where vLLM's arithmetic allows it (float32 on a CPU)."""
        return Capabilities(addressed_noise=self._settings.reproducible, cancel=True, priority=True, logprobs=True)

    @property
    def metrics(self) -> SchedulerMetrics:
        """What vLLM's scheduler says of itself."""
        return self._metrics

    @property
    def weights_version(self) -> int:
        """How many times the weights were updated."""
        return self._service.version

    def submit(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        seed: int,
        *,
        hint: Hint | None = None,
        priority: Priority = Priority.COMMITTED,
        draft: Sequence[int] = (),
    ) -> Generation:
        """Starts a generation; see :meth:`obsspec_gym.agents.engine.base.Engine.submit`.

        Raises:
            InvalidArgumentError: Also for what vLLM would do otherwise without a word: a draft, a cut-off with
                greedy sampling (vLLM drops it), a temperature under 0.01 (vLLM raises it).
        """
        if self._closed:
            raise ClosedError("this engine is closed")
        prompt = as_token_ids("prompt", prompt_ids)
        self._check(prompt, sampling, seed, draft)
        number = next(self._numbers)
        request = Request(number, prompt, sampling, seed, priority)
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._inbox.expect(number, future)
        try:
            self._service.submit(request)
        except EngineError:
            self._inbox.forget(number)
            raise
        return Generation(
            future,
            cancel=lambda: self._cancel(number),
            promote=lambda: self._service.promote(number),
            partial=lambda: tuple(request.tokens),
        )

    def _cancel(self, number: int) -> None:
        self._inbox.forget(number)
        self._service.cancel(number)

    def _check(self, prompt: tuple[int, ...], sampling: Sampling, seed: int, draft: Sequence[int]) -> None:
        check_prompt(prompt, self._shape.context, self._shape.vocabulary)
        check_seed(seed)
        if len(draft):
            raise InvalidArgumentError("vLLM verifies no drafts of a caller's (capabilities.drafts), and one was given")
        if sampling.temperature == 0 and (sampling.top_k or sampling.top_p < 1):
            raise InvalidArgumentError("vLLM drops top_k and top_p at temperature 0: leave them out there")
        if 0 < sampling.temperature < _LOWEST_TEMPERATURE:
            raise InvalidArgumentError(
                f"vLLM knows no temperature between 0 and {_LOWEST_TEMPERATURE}, got {sampling.temperature}"
            )

    def load(self) -> EngineLoad:
        """How busy the engine is, as vLLM's scheduler said after its last step."""
        return self._service.load()

    def update_weights(self, weights: Weights | None = None) -> int:
        """Takes over new weights; returns when vLLM computes with them.

        What vLLM remembered of the old ones is dropped. Speculative generations under way end with
        ``GenerationCancelled``. Committed ones start over from their prompts: a completion is always wholly of the
        version it names.

        Args:
            weights: Parameters by Hugging Face's names, all of them; ``None`` reads the model, or the directory,
                that the engine was made from again.

        Raises:
            InvalidArgumentError: If a parameter is missing or of another shape; nothing is changed then.
            EngineError: If vLLM could not take them over; it is not used any more then.
        """
        if self._closed:
            raise ClosedError("this engine is closed")
        state = self._source.state(weights)
        self._service.update(functools.partial(load, state=state))
        return self._service.version

    def close(self) -> None:
        """Ends vLLM; what is under way ends with ``GenerationCancelled``. Idempotent."""
        self._closed = True
        self._finalizer()

    def __enter__(self) -> VLLMEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _release(service: Service, inbox: Inbox) -> None:
    service.close()
    inbox.cancel_all()
