"""The embedded default engine: a Hugging Face causal language model, run by this package itself.

Continuous batching, prefix reuse, drafts verified in one pass, and addressed noise: a completion is a pure function
of (weights, prompt, sampling, seed), whatever else runs beside it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from obsspec_gym.agents.engine.arguments import as_token_ids, check_prompt, check_seed, check_vocabulary
from obsspec_gym.agents.engine.base import Capabilities, EngineLoad, Weights
from obsspec_gym.agents.generation import Generation
from obsspec_gym.agents.loading import load_model
from obsspec_gym.errors import ClosedError, EngineError, InvalidArgumentError, MissingExtraError
from obsspec_gym.types import Completion, Hint, Priority, Sampling

try:
    import torch
except ImportError as error:
    raise MissingExtraError(error.name or "torch", "lm") from error

from obsspec_gym.agents.engine.embedded.drivers import Change, Driver
from obsspec_gym.agents.engine.embedded.inbox import Inbox
from obsspec_gym.agents.engine.embedded.kv import row_length
from obsspec_gym.agents.engine.embedded.model import rows_are_independent
from obsspec_gym.agents.engine.embedded.processors import Processors
from obsspec_gym.agents.engine.embedded.requests import Cancel, Promote, Submit
from obsspec_gym.agents.engine.embedded.settings import DriverName, DtypeName, Settings
from obsspec_gym.agents.engine.embedded.shape import ModelShape

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_log = logging.getLogger(__name__)


__all__ = ["DriverName", "DtypeName", "TransformersEngine"]


class TransformersEngine:
    """Generates with a Llama, Qwen2 or Qwen3 model on this machine.

    The engine computes with a copy of the weights, taken now and at each :meth:`update_weights`.

    Args:
        model_or_path: A transformers causal language model, or a directory with one (local files only).
        weights: Parameters by Hugging Face's names, where they are not the model's own: it may be one with adapters.
        dtype: ``"float32"`` or ``"float64"``: what the engine computes in, whatever the model is in.
        driver: Who runs the steps. ``"thread"`` for a process that is otherwise quiet, ``"process"`` beside many
            environments (Python threads would slow the engine down many times), ``"inline"`` on the event loop
            (deterministic; for tests).
        max_batch_tokens: Rows in one step: bounds how long a step takes.
        max_running: Requests that run at once; further ones wait.
        capacity_tokens: KV slots for running requests and remembered prefixes; by default 512 MiB worth of them.
        device: Where to compute.
        step_seconds: For the inline driver: seconds on the event loop's clock that one step takes. For the process
            driver: seconds that a step takes at least, the pace of a larger model.
        threads: For the process driver: CPU threads of the engine's process.
        niceness: For the process driver: how far the engine stands back behind other processes for the CPU, 0 to 19.
            A world model is worth it: a late prediction costs a chance, a late policy costs everybody.

    Raises:
        InvalidArgumentError: If the model is of another architecture, weights of it are missing or of another shape,
            or an argument is out of range.

    Example:
        >>> from transformers import Qwen3Config, Qwen3ForCausalLM
        >>> config = Qwen3Config(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        ...     num_attention_heads=2, num_key_value_heads=1, head_dim=16, max_position_embeddings=128)
        >>> async def main():
        ...     with TransformersEngine(Qwen3ForCausalLM(config), driver="inline") as engine:
        ...         completion = await engine.submit([1, 2, 3], Sampling(max_tokens=5), seed=0)
        ...         return len(completion.token_ids)
        >>> asyncio.run(main())
        5
    """

    def __init__(
        self,
        model_or_path: PreTrainedModel | str | Path,
        *,
        weights: Weights | None = None,
        dtype: DtypeName = "float32",
        driver: DriverName = "thread",
        max_batch_tokens: int = 512,
        max_running: int = 64,
        capacity_tokens: int | None = None,
        device: str = "cpu",
        step_seconds: float = 0.0,
        threads: int = 1,
        niceness: int = 0,
    ) -> None:
        settings = Settings(
            dtype, driver, max_batch_tokens, max_running, capacity_tokens, device, step_seconds, threads, niceness
        )
        if isinstance(model_or_path, str | Path):
            model, self._source = load_model(model_or_path), None
        else:
            model = self._source = model_or_path
        self._shape = ModelShape.of(model.config)
        self._limits = settings.limits(self._shape)
        self._version = 0
        self._closed = False
        self._numbers = itertools.count()
        self._inbox = Inbox()
        # The inline driver keeps everything reproducible, what selectors choose as well.
        self._processors = Processors() if device == "cpu" and driver != "inline" else None
        self._driver, self._weights = settings.make_driver(self._shape, self._limits, self._inbox)
        self._finalizer = weakref.finalize(self, _release, self._driver, self._inbox)
        self._weights.load(dict(model.named_parameters() if weights is None else weights))
        self._weights.load_rope(model)
        self._bit_exact = rows_are_independent(self._weights)
        if not self._bit_exact:
            _log.warning(
                "the matrix products of this machine depend on how many rows they have: completions may differ in rare "
                "tokens between runs that batch differently; float64 makes that practically impossible"
            )

    @property
    def capabilities(self) -> Capabilities:
        """Everything."""
        return Capabilities(addressed_noise=True, drafts=True, cancel=True, priority=True, logprobs=True)

    @property
    def bit_exact(self) -> bool:
        """Whether results are the same bits whatever else is in the batch (probed when the engine is made)."""
        return self._bit_exact

    @property
    def weights_version(self) -> int:
        """How many times the weights were updated."""
        return self._version

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

        ``hint`` is not needed: prefixes are recognised by their tokens.
        """
        if self._closed:
            raise ClosedError("this engine is closed")
        prompt, draft = as_token_ids("prompt", prompt_ids), as_token_ids("draft", draft)
        self._check(prompt, sampling, seed, draft)
        number = next(self._numbers)
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        partial = self._inbox.expect(number, future, speculative=priority is Priority.SPECULATIVE)
        try:
            self._driver.send(Submit(number, prompt, sampling, seed, priority, draft))
        except EngineError:
            self._inbox.forget(number)
            raise
        return Generation(
            future,
            cancel=lambda: self._cancel(number),
            promote=lambda: self._promote(number),
            partial=lambda: tuple(partial),
        )

    def _cancel(self, number: int) -> None:
        self._inbox.forget(number)
        if not self._closed:
            self._driver.send(Cancel(number))

    def _promote(self, number: int) -> None:
        self._inbox.promote(number)
        self._driver.send(Promote(number))

    def _check(self, prompt: tuple[int, ...], sampling: Sampling, seed: int, draft: tuple[int, ...]) -> None:
        shape, limits = self._shape, self._limits
        check_prompt(prompt, shape.context, shape.vocabulary)
        check_vocabulary("draft", draft, shape.vocabulary)
        check_seed(seed)
        most = row_length(min(len(prompt) + sampling.max_tokens, shape.context))
        if most > limits.capacity_tokens:
            raise InvalidArgumentError(
                f"prompt and max_tokens can need {most} KV slots, and the engine has {limits.capacity_tokens}"
            )

    def load(self) -> EngineLoad:
        """How busy the engine is; with the process driver, as of its last report and what was sent since."""
        load = self._driver.load()
        # What nobody has reported yet takes part in the next step, unless others wait already.
        new = max(0, len(self._inbox) - load.running - load.waiting)
        running, waiting = (0, new) if load.waiting else (new, 0)
        return replace(
            load,
            running=load.running + running,
            waiting=load.waiting + waiting,
            speculative=self._inbox.speculative,
            contended=self._processors.contended if self._processors else 0.0,
        )

    def update_weights(self, weights: Weights | None = None) -> int:
        """Takes over new weights between two steps; waits for the step under way.

        Keys, values and remembered prefixes of the old weights are dropped. Speculative generations under way end
        with ``GenerationCancelled``. Committed ones start over from their prompts, with what they had sampled as a
        draft: a completion is always wholly of the version it names.

        Args:
            weights: Parameters by Hugging Face's names, all of them; ``None`` reads the model the engine was made
                from.

        Raises:
            InvalidArgumentError: If a parameter is missing or of another shape (nothing is changed then), or if
                ``weights`` is ``None`` and the engine was made from a directory.
        """
        if self._closed:
            raise ClosedError("this engine is closed")
        if weights is None:
            if self._source is None:
                raise InvalidArgumentError("expected weights: this engine was made from a directory, not a model")
            weights = dict(self._source.named_parameters())
        state = weights if isinstance(weights, Mapping) else dict(weights)
        self._weights.check(state)
        self._driver.update(self._change(state), self._version + 1)
        self._version += 1
        return self._version

    def _change(self, state: Mapping[str, torch.Tensor]) -> Change:
        return lambda: self._weights.load(state)

    def close(self) -> None:
        """Releases everything; what is under way ends with ``GenerationCancelled``. Idempotent."""
        self._closed = True
        self._finalizer()

    def __enter__(self) -> TransformersEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _release(driver: Driver, inbox: Inbox) -> None:
    driver.close()
    inbox.cancel_all()
