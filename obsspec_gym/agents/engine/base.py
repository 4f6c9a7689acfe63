"""What every engine offers: token ids in, generations out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from obsspec_gym.agents.generation import Generation
from obsspec_gym.types import Hint, Priority, Sampling

if TYPE_CHECKING:
    import torch

    Weights = Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]]
else:
    Weights = Any


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can do. What it cannot is refused by name, never ignored.

    Attributes:
        addressed_noise: Token ``i`` depends on (weights, history, seed, i) alone: speculation is lossless token
            by token (I2a). Without it, it is lossless in distribution (I6).
        drafts: ``draft`` is verified in one pass.
        cancel: ``Generation.cancel`` frees the engine's resources.
        priority: Committed generations go before speculative ones.
        logprobs: Logprobs are of the processed distribution.
    """

    addressed_noise: bool = False
    drafts: bool = False
    cancel: bool = False
    priority: bool = False
    logprobs: bool = False


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """How busy an engine is at this moment.

    Attributes:
        running: Requests that take part in the next step.
        waiting: Requests queued.
        speculative: How many of both are speculative.
        cached_tokens: KV-cache slots in use, in tokens.
        capacity_tokens: KV-cache slots in all, in tokens.
        contended: The probability that no processor is free for what it computes, so that tools, or requests that are
            needed, lose what it computes for others; 0 for an engine with processors of its own.
    """

    running: int = 0
    waiting: int = 0
    speculative: int = 0
    cached_tokens: int = 0
    capacity_tokens: int = 0
    contended: float = 0.0


@runtime_checkable
class Engine(Protocol):
    """Generates completions for token prompts.

    Constructors start nothing; the first :meth:`submit` (from a running event loop) does. :meth:`close` releases
    everything, may be called twice, and fails what is under way with ``GenerationCancelled``.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What this engine can do."""
        ...

    @property
    def weights_version(self) -> int:
        """How many times the weights were updated."""
        ...

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
        """Starts a generation.

        Args:
            prompt_ids: The whole prompt, as token ids; at least one.
            sampling: How tokens are drawn.
            seed: Addresses the noise: token ``i`` is argmax(log p + Gumbel(seed, i)). In [0, 2**63).
            hint: For schedulers over replicas.
            priority: Who goes first.
            draft: Tokens that might come: verified in one pass, accepted as far as they equal what is sampled.

        Returns:
            The generation, already queued.

        Raises:
            InvalidArgumentError: Before anything is queued: an empty prompt, token ids outside the vocabulary, a
                prompt as long as the context, or something the engine is not capable of.
            ClosedError: If the engine is closed.
        """
        ...

    def load(self) -> EngineLoad:
        """How busy the engine is."""
        ...

    def update_weights(self, weights: Weights | None = None) -> int:
        """Takes over new weights between two steps.

        Every cached state of the old weights is dropped. ``None`` means that the engine's model shares its
        storages with the trainer's, which has changed them in place.

        Returns:
            The new weights version.
        """
        ...

    def close(self) -> None:
        """Releases everything. Idempotent."""
        ...
