"""What goes into the core, what comes out, and the state of a request in between."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from obsspec_gym.agents.engine.embedded.kv import Row
from obsspec_gym.types import Completion, FinishReason, Priority, Sampling


@dataclass(frozen=True, slots=True)
class Submit:
    """Start a request. The arguments have been checked."""

    request: int
    prompt: tuple[int, ...]
    sampling: Sampling
    seed: int
    priority: Priority
    draft: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Cancel:
    """Forget a request, and free what it holds."""

    request: int


@dataclass(frozen=True, slots=True)
class Promote:
    """A speculative request became a committed one."""

    request: int


Command: TypeAlias = Submit | Cancel | Promote


@dataclass(frozen=True, slots=True)
class Finished:
    """A request ended: with a completion, or with an error that says why there is none."""

    request: int
    completion: Completion | None = None
    error: str | None = None
    cancelled: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    """What speculative requests have sampled since the last word of them.

    Only theirs is told: a future that is given up is counted, and becomes the draft of what is generated instead.
    """

    tokens: dict[int, tuple[int, ...]]


@dataclass(slots=True, eq=False)
class Request:
    """One request's state.

    Attributes:
        number: Identifies it; later requests have higher numbers.
        prompt_length: How many of ``tokens`` are prompt.
        tokens: Prompt and completion so far.
        logprobs: One a completion token.
        draft: Tokens that might come, aligned with the completion; emptied at the first that does not.
        accepted: How many tokens came from the draft.
        row: Where its keys and values live; ``None`` while it waits.
        computed: How many leading tokens have keys and values in ``row``.
        told: How many of its completion tokens have been told (see :class:`Progress`).
    """

    number: int
    prompt_length: int
    tokens: list[int]
    sampling: Sampling
    seed: int
    priority: Priority
    draft: tuple[int, ...] = ()
    logprobs: list[float] = field(default_factory=list)
    accepted: int = 0
    row: Row | None = None
    computed: int = 0
    told: int = 0

    @classmethod
    def of(cls, command: Submit) -> Request:
        """The request a command asks for, waiting."""
        return cls(
            number=command.request,
            prompt_length=len(command.prompt),
            tokens=list(command.prompt),
            sampling=command.sampling,
            seed=command.seed,
            priority=command.priority,
            draft=command.draft,
        )

    @property
    def generated(self) -> int:
        """Completion tokens so far."""
        return len(self.tokens) - self.prompt_length

    @property
    def rank(self) -> tuple[int, int]:
        """Who goes first: committed before speculative, then in order of arrival."""
        return (self.priority, self.number)

    def restart(self) -> None:
        """Back to the prompt; what was sampled becomes a draft. The row must have been freed."""
        sampled = tuple(self.tokens[self.prompt_length :])
        self.draft = sampled + self.draft[len(sampled) :]
        del self.tokens[self.prompt_length :]
        self.logprobs.clear()
        self.accepted = self.computed = 0
        self.row = None

    def completion(self, reason: FinishReason, weights_version: int) -> Completion:
        """What it came to."""
        return Completion(
            token_ids=tuple(self.tokens[self.prompt_length :]),
            logprobs=tuple(self.logprobs),
            finish_reason=reason,
            weights_version=weights_version,
            accepted_draft_tokens=self.accepted,
        )
