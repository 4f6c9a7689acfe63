"""A simulated engine: the timing of a real one, completions by hash. Runs on any event loop, a virtual clock first.

Its completions obey the same law as the real engines' (a pure function of prompt and seed), so whatever holds for
token equality here is a statement about the speculation code, not about luck.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from obsspec_gym.agents.engine.base import Capabilities, EngineLoad, Weights
from obsspec_gym.agents.generation import Generation
from obsspec_gym.errors import ClosedError, EngineError, InvalidArgumentError
from obsspec_gym.seeding import derive_seed
from obsspec_gym.types import Completion, FinishReason, Hint, Priority, Sampling


def constant_step(seconds: float) -> Callable[[int], float]:
    """A step that takes the same time at every batch size."""
    return lambda batch: seconds


@dataclass(eq=False, slots=True)
class _Request:
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    priority: Priority
    arrival: int
    prefill: float
    future: asyncio.Future[Completion]
    draft: tuple[int, ...] = ()
    done: int = 0
    accepted: int = 0


@dataclass(slots=True)
class Counters:
    """What a simulated engine has done.

    Attributes:
        steps: Decoding steps.
        tokens: Tokens sampled.
        submitted: Requests submitted.
        cancelled: Requests cancelled while under way.
    """

    steps: int = 0
    tokens: int = 0
    submitted: int = 0
    cancelled: int = 0


@dataclass
class SimulatedEngine:
    """An engine of given speed.

    Args:
        step_seconds: Seconds of one decoding step by number of running requests.
        prefill_seconds: Seconds a request waits before its first token, by number of prompt tokens.
        length: Tokens of a completion, as a function of (prompt, seed); by default 1 to 16 by hash.
        max_running: Requests that run at once; committed ones are admitted first.
        vocabulary: Token ids are in [0, vocabulary).
        fails: Says for (prompt, seed) whether the request fails with ``EngineError``.
    """

    step_seconds: Callable[[int], float] = field(default_factory=lambda: constant_step(0.01))
    prefill_seconds: Callable[[int], float] = field(default_factory=lambda: constant_step(0.0))
    length: Callable[[Sequence[int], int], int] | None = None
    max_running: int = 64
    vocabulary: int = 1000
    fails: Callable[[Sequence[int], int], bool] | None = None
    counters: Counters = field(default_factory=Counters)

    def __post_init__(self) -> None:
        self._running: list[_Request] = []
        self._waiting: list[_Request] = []
        self._driver: asyncio.Task[None] | None = None
        self._closed = False
        self._version = 0

    @property
    def capabilities(self) -> Capabilities:
        """Everything."""
        return Capabilities(addressed_noise=True, drafts=True, cancel=True, priority=True, logprobs=True)

    @property
    def weights_version(self) -> int:
        """How many times the weights were "updated"."""
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
        """Starts a generation; see :meth:`obsspec_gym.agents.engine.base.Engine.submit`."""
        if self._closed:
            raise ClosedError("the engine is closed")
        if not prompt_ids:
            raise InvalidArgumentError("prompt_ids must hold at least one token id, got none")
        self.counters.submitted += 1
        loop = asyncio.get_running_loop()
        prompt = tuple(prompt_ids)
        request = _Request(
            prompt=prompt,
            tokens=self._completion(prompt, sampling, seed),
            priority=priority,
            arrival=self.counters.submitted,
            prefill=self.prefill_seconds(len(prompt)),
            future=loop.create_future(),
            draft=tuple(draft),
        )
        if self.fails is not None and self.fails(prompt, seed):
            loop.call_later(self.step_seconds(1), _fail, request.future)
        else:
            self._waiting.append(request)
            if self._driver is None or self._driver.done():
                self._driver = loop.create_task(self._drive())
        return Generation(
            request.future,
            cancel=lambda: self._cancel(request),
            promote=lambda: self._promote(request),
            partial=lambda: request.tokens[: request.done],
        )

    def load(self) -> EngineLoad:
        """How busy it is."""
        everyone = self._running + self._waiting
        return EngineLoad(
            running=len(self._running),
            waiting=len(self._waiting),
            speculative=sum(request.priority is Priority.SPECULATIVE for request in everyone),
            cached_tokens=sum(len(request.prompt) + request.done for request in self._running),
        )

    def update_weights(self, weights: Weights | None = None) -> int:
        """Changes what every later request samples."""
        self._version += 1
        return self._version

    def close(self) -> None:
        """Cancels what is under way."""
        self._closed = True
        for request in self._running + self._waiting:
            Generation(request.future).cancel()
        self._running, self._waiting = [], []
        if self._driver is not None:
            self._driver.cancel()
            self._driver = None

    async def _drive(self) -> None:
        """Schedule, run, postprocess, until nobody is left."""
        while self._waiting or self._running:
            prefill = self._admit()
            await asyncio.sleep(prefill + self.step_seconds(len(self._running)))
            self.counters.steps += 1
            for request in list(self._running):
                self._advance(request)

    def _admit(self) -> float:
        """Lets the first of the queue in; returns the seconds their prompts take."""
        self._waiting.sort(key=lambda request: (request.priority, request.arrival))
        free = self.max_running - len(self._running)
        admitted, self._waiting = self._waiting[:free], self._waiting[free:]
        self._running += admitted
        return sum(request.prefill for request in admitted)

    def _advance(self, request: _Request) -> None:
        if request not in self._running:
            return  # cancelled during the step
        before = request.done
        if before == 0:
            request.accepted = _common_prefix(request.draft, request.tokens)
        request.done = min(len(request.tokens), max(before + 1, request.accepted + 1))
        self.counters.tokens += request.done - before
        if request.done == len(request.tokens):
            self._running.remove(request)
            if not request.future.done():
                request.future.set_result(
                    Completion(
                        token_ids=request.tokens,
                        logprobs=(-1.0,) * len(request.tokens),
                        finish_reason=FinishReason.STOP,
                        weights_version=self._version,
                        accepted_draft_tokens=request.accepted,
                    )
                )

    def _completion(self, prompt: tuple[int, ...], sampling: Sampling, seed: int) -> tuple[int, ...]:
        base = derive_seed("simulated", self._version, seed, *prompt)
        length = self.length(prompt, seed) if self.length else 1 + base % 16
        length = max(1, min(length, sampling.max_tokens))
        return tuple(derive_seed(base, i) % self.vocabulary for i in range(length))

    def _cancel(self, request: _Request) -> None:
        self.counters.cancelled += 1
        if request in self._running:
            self._running.remove(request)
        if request in self._waiting:
            self._waiting.remove(request)

    def _promote(self, request: _Request) -> None:
        request.priority = Priority.COMMITTED


def _fail(future: asyncio.Future[Completion]) -> None:
    if not future.done():
        future.set_exception(EngineError("the simulated engine was asked to fail"))


def _common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    for i, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return i
    return min(len(left), len(right))
