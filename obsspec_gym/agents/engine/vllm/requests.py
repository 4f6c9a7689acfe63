"""One request: what is asked, what has come, and the stream that vLLM answers with."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from obsspec_gym.errors import EngineError
from obsspec_gym.types import Completion, FinishReason, Priority, Sampling

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.outputs import CompletionOutput
    from vllm.v1.engine.async_llm import AsyncLLM

_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


@dataclass(slots=True, eq=False)
class Request:
    """One request's state; changed on the engine's thread only.

    Attributes:
        number: Identifies it.
        prompt: Token ids.
        sampling: How tokens are drawn.
        seed: Of its noise.
        priority: Who goes first.
        tokens: What has been sampled in this attempt.
        logprobs: One a token.
        attempts: How often it was given to vLLM.
        task: What takes its tokens from vLLM.
        queueing: What puts it into vLLM's queue again.
        wanted: Whether somebody still waits for it.
    """

    number: int
    prompt: tuple[int, ...]
    sampling: Sampling
    seed: int
    priority: Priority
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    attempts: int = 0
    task: asyncio.Task[None] | None = None
    queueing: asyncio.Task[None] | None = None
    wanted: bool = True
    _halted: bool = False

    def begin(self, task: asyncio.Task[None]) -> None:
        """A new attempt: nothing of an earlier one remains."""
        self.task = task
        self.attempts += 1
        self.tokens.clear()
        self.logprobs.clear()
        self._halted = False

    def halt(self) -> asyncio.Task[None]:
        """Stops the attempt under way, once: a second cancellation would stop the abort itself."""
        assert self.task is not None
        if not self._halted:
            self._halted = True
            self.task.cancel()
        return self.task

    async def halted(self) -> asyncio.Task[None]:
        """The attempt that was under way, stopped."""
        task = self.halt()
        await asyncio.wait([task])
        return task

    def take(self, output: CompletionOutput) -> None:
        """What vLLM has sampled since the last output."""
        self.tokens += output.token_ids
        assert output.logprobs is not None
        self.logprobs += [at[token].logprob for token, at in zip(output.token_ids, output.logprobs, strict=True)]

    async def stream(self, llm: AsyncLLM, version: int) -> Completion:
        """Has vLLM generate. Cancelled, it returns only when vLLM has been told to stop.

        Raises:
            EngineError: If vLLM ended it for another reason than a stop token or its length.
        """
        from vllm.inputs import tokens_input

        # An identifier of its own for every attempt: nothing that vLLM still sends for an earlier one can be taken
        # for an output of this one.
        name = f"{self.number}.{self.attempts}"
        adding = asyncio.ensure_future(
            llm.add_request(
                name,
                tokens_input(list(self.prompt)),
                parameters(self.sampling, self.seed),
                priority=int(self.priority),
            )
        )
        try:
            outputs = await asyncio.shield(adding)  # half added, it could not be taken back
            while True:
                output: Any = outputs.get_nowait() or await outputs.get()
                (completion,) = output.outputs
                self.take(completion)
                if output.finished:
                    return self._completion(completion.finish_reason, version)
        except asyncio.CancelledError:
            await llm.abort((await adding).request_id, internal=True)
            raise

    def _completion(self, reason: str | None, version: int) -> Completion:
        if reason not in _REASONS:
            raise EngineError(f"vLLM ended a request: {reason}")
        return Completion(
            token_ids=tuple(self.tokens),
            logprobs=tuple(self.logprobs),
            finish_reason=_REASONS[reason],
            weights_version=version,
        )


def parameters(sampling: Sampling, seed: int) -> SamplingParams:
    """The same in vLLM's terms: token ids only, as they are sampled, each with the logprob it was drawn with."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        max_tokens=sampling.max_tokens,
        seed=seed,
        stop_token_ids=list(sampling.stop_token_ids),
        ignore_eos=True,  # only what the caller names ends a completion
        detokenize=False,
        logprobs=0,  # of the sampled token only
        output_kind=RequestOutputKind.DELTA,
    )
