"""A request and what of it has arrived."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from obsspec_gym.agents.engine.servers.protocol import Piece, ServerLost, ServerRefused
from obsspec_gym.errors import ObsSpecError
from obsspec_gym.types import Completion, FinishReason, Hint, Priority, Sampling, TokenIds


@dataclass(eq=False, slots=True)
class Request:
    """One generation, from its submission to its end.

    What arrives is written by the pool's thread; others may read :attr:`token_ids` at any time.

    Attributes:
        prompt: Token ids.
        sampling: How tokens are drawn.
        seed: Of the server's sampler.
        max_tokens: At most the sampling's, and what the context leaves room for.
        hint: For the router.
        priority: Who goes first.
        arrival: Its number.
        future: What its owner awaits, on the owner's event loop.
        task: What serves it, on the pool's event loop.
        sent: Whether it is at a server.
        restarting: Whether it is being served anew, from its prompt.
        token_ids: What has arrived of this attempt.
        logprobs: Likewise.
        ended: Why it ended, if it did.
    """

    prompt: TokenIds
    sampling: Sampling
    seed: int
    max_tokens: int
    hint: Hint | None
    priority: Priority
    arrival: int
    future: asyncio.Future[Completion]
    task: asyncio.Task[Completion] | None = None
    sent: bool = False
    restarting: bool = False
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ended: str | None = None

    def begin(self) -> None:
        """A new attempt: nothing of an earlier one is kept."""
        self.token_ids, self.logprobs, self.ended = [], [], None

    def add(self, piece: Piece) -> None:
        """Takes in what arrived."""
        self.token_ids += piece.token_ids
        self.logprobs += piece.logprobs
        self.ended = piece.ended or self.ended

    def completion(self, version: int) -> Completion:
        """What it came to.

        Args:
            version: Of the weights it was sampled under.

        Raises:
            ServerLost: If the stream ended before the completion did.
            ServerRefused: If it ended for another reason than it was asked to.
        """
        stops, count = self.sampling.stop_token_ids, len(self.token_ids)
        stopped = bool(count) and self.token_ids[-1] in stops
        if self.ended is None:
            raise ServerLost(f"ended the stream after {count} tokens, before the completion was finished")
        if self.ended == "stop" and not stopped:
            raise ServerRefused("ended a completion without one of the stop tokens that it was given")
        if any(token in stops for token in self.token_ids[:-1]):
            raise ServerRefused("went on after a stop token that it was given")
        if not 0 < count <= self.max_tokens:
            raise ServerRefused(f"gave {count} tokens where 1 to {self.max_tokens} were asked for")
        return Completion(
            token_ids=tuple(self.token_ids),
            logprobs=tuple(self.logprobs),
            finish_reason=FinishReason.STOP if stopped else FinishReason.LENGTH,
            weights_version=version,
        )

    def settle(self, outcome: Completion | ObsSpecError) -> None:
        """Tells its owner, from any thread."""
        loop = self.future.get_loop()
        try:
            loop.call_soon_threadsafe(_resolve, self.future, outcome)
        except RuntimeError:  # its owner's event loop is closed: nobody waits any more
            return


def _resolve(future: asyncio.Future[Completion], outcome: Completion | ObsSpecError) -> None:
    if future.done():
        return
    if isinstance(outcome, Completion):
        future.set_result(outcome)
    else:
        future.set_exception(outcome)
