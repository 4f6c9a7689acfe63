"""The engine as a synchronous program: commands go in, ``step()`` runs, finished requests come out.

Whoever calls it (see ``drivers``) calls it from one thread at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from obsspec_gym.agents.engine.base import EngineLoad
from obsspec_gym.agents.engine.embedded.batch import Batch, Span
from obsspec_gym.agents.engine.embedded.kv import KVRows, Row
from obsspec_gym.agents.engine.embedded.model import LeanModel
from obsspec_gym.agents.engine.embedded.prefix import PrefixTree
from obsspec_gym.agents.engine.embedded.requests import Cancel, Command, Finished, Progress, Promote, Request, Submit
from obsspec_gym.agents.engine.embedded.sampler import Draw, Sampler
from obsspec_gym.agents.engine.embedded.scheduler import Limits, Scheduler, Work
from obsspec_gym.agents.engine.embedded.step_times import StepTimes
from obsspec_gym.agents.engine.embedded.weights import ModelWeights
from obsspec_gym.types import FinishReason, Priority


class Core:
    """Continuous batching over one model: requests join and leave at each step.

    Args:
        weights: The model. Whoever changes them calls :meth:`update` in the same breath.
        limits: What may be used.

    Attributes:
        weights_version: Of the weights in use.
        step_rows: Rows of the last step.
        times: How long steps take.
    """

    def __init__(self, weights: ModelWeights, limits: Limits) -> None:
        self.limits = limits
        self.weights_version = 0
        self.step_rows = 0
        self.times = StepTimes()
        self._weights = weights
        self._model = LeanModel(weights)
        self._sampler = Sampler(weights.shape.vocabulary, weights.block.device)
        self._requests: dict[int, Request] = {}
        self._forget()

    def _forget(self) -> None:
        """Drops everything that was computed."""
        shape, block = self._weights.shape, self._weights.block
        self._rows = KVRows(shape, block.dtype, block.device)
        self._prefixes = PrefixTree()
        self._scheduler = Scheduler(self.limits, shape.context, self._rows, self._prefixes, self.times)
        self._steady: tuple[list[Work], Batch] | None = None

    @property
    def busy(self) -> bool:
        """Whether a step has something to do."""
        return bool(self._requests)

    def load(self) -> EngineLoad:
        """How busy it is. May be called from any thread."""
        return EngineLoad(
            running=len(self._scheduler.running),
            waiting=len(self._scheduler.waiting),
            speculative=sum(r.priority is Priority.SPECULATIVE for r in list(self._requests.values())),
            cached_tokens=self._scheduler.computed_tokens(),
            capacity_tokens=self.limits.capacity_tokens,
        )

    def apply(self, command: Command) -> None:
        """Carries out a command; between two steps."""
        if isinstance(command, Submit):
            request = Request.of(command)
            self._requests[request.number] = request
            self._scheduler.waiting.append(request)
        elif (known := self._requests.get(command.request)) is None:
            return  # it has finished in the meantime
        elif isinstance(command, Cancel):
            self._end(known, remember=False)
        elif isinstance(command, Promote):
            known.priority = Priority.COMMITTED
            self._steady = None  # it may have been paused

    def update(self, version: int) -> list[Finished]:
        """Starts over with new weights; between two steps.

        Nothing of the old weights survives: keys, values and prefixes are dropped, speculative requests are
        cancelled, and committed ones go back to their prompts, with what they had sampled as a draft. So a
        completion is wholly of the version it names.

        Returns:
            The cancelled requests.
        """
        self.weights_version = version
        dropped = [r for r in self._requests.values() if r.priority is Priority.SPECULATIVE]
        for request in dropped:
            del self._requests[request.number]
        self._forget()
        for request in self._requests.values():
            request.restart()
            self._scheduler.waiting.append(request)
        return [Finished(request.number, cancelled=True) for request in dropped]

    def fail_all(self, error: str) -> list[Finished]:
        """Ends every request with an error, and starts afresh."""
        failed = [Finished(number, error=error) for number in self._requests]
        self._requests.clear()
        self._forget()
        return failed

    def progress(self) -> Progress | None:
        """What speculative requests have sampled since this was last asked; ``None`` for nothing."""
        news = {}
        for request in self._requests.values():
            if request.priority is Priority.SPECULATIVE and request.generated > request.told:
                news[request.number] = tuple(request.tokens[request.prompt_length + request.told :])
                request.told = request.generated
        return Progress(news) if news else None

    @torch.inference_mode()
    def step(self) -> list[Finished]:
        """Schedule, run, sample, postprocess.

        Returns:
            The requests that ended.
        """
        works, batch = self._schedule()
        self.step_rows = 0 if batch is None else batch.count
        if batch is None:
            return []
        logits = self._model.forward(batch)
        tokens, logprobs = self._sample(works, logits)
        return self._postprocess(works, tokens, logprobs)

    def took(self, seconds: float) -> None:
        """Is told how long the last step took, by the clock of whoever runs it."""
        if self.step_rows:
            self.times.add(self.step_rows, seconds)

    def _schedule(self) -> tuple[list[Work], Batch | None]:
        scheduler = self._scheduler
        joined = bool(scheduler.waiting) and scheduler.admit()
        if self._steady is not None and not joined:
            works, batch = self._steady
            if all(self._fits_on(work.request) for work in works):
                batch.advance([work.request.tokens[-1] for work in works])
                return works, batch
        plan = scheduler.plan()
        works = plan.works
        if not works:
            return works, None
        spans = [Span(_row(w.request), w.request.computed, w.tokens, w.wanted) for w in works]
        batch = Batch(spans, self._weights.shape, self._rows)
        plain = all(w.known == 1 and w.samples and not w.draft and not w.request.draft for w in works)
        everyone = len(works) + plan.paused == len(scheduler.running)  # until one joins, leaves or is promoted
        self._steady = (works, batch) if plain and everyone else None
        return works, batch

    def _fits_on(self, request: Request) -> bool:
        return request.computed < self._rows.classes[_row(request).size_class].length

    def _sample(self, works: Sequence[Work], logits: torch.Tensor) -> tuple[list[int], list[float]]:
        draws = [
            Draw(work.request.sampling, work.request.seed, work.request.generated + i)
            for work in works
            for i in range(work.wanted)
        ]
        if not draws:
            return [], []
        return self._sampler.pick(logits[: len(draws)], draws)

    def _postprocess(self, works: Sequence[Work], tokens: list[int], logprobs: list[float]) -> list[Finished]:
        finished = []
        at = 0
        for work in works:
            request = work.request
            if not work.samples:
                request.computed += work.known
                continue
            prefilled = request.computed < request.prompt_length
            picked = slice(at, at + work.wanted)
            at += work.wanted
            end = self._extend(request, work, tokens[picked], logprobs[picked])
            if end is not None:
                self._end(request, remember=end.completion is not None)
                finished.append(end)
            elif prefilled and request.priority is Priority.COMMITTED:
                self._scheduler.remember(request)  # for the members of its group, and its own next turn
        return finished

    def _extend(self, request: Request, work: Work, tokens: list[int], logprobs: list[float]) -> Finished | None:
        """Appends what was drawn, as far as the draft was right: a token was drawn given the draft before it."""
        sampling, context = request.sampling, self._weights.shape.context
        for i, (token, logprob) in enumerate(zip(tokens, logprobs, strict=True)):
            if math.isnan(logprob):
                return Finished(request.number, error="the model's logits are not numbers")
            expected = request.draft[request.generated] if request.generated < len(request.draft) else None
            request.tokens.append(token)
            request.logprobs.append(logprob)
            request.computed = len(request.tokens) - 1
            request.accepted += token == expected
            if token != expected or request.generated >= len(request.draft):
                request.draft = ()
            if token in sampling.stop_token_ids:
                return Finished(request.number, request.completion(FinishReason.STOP, self.weights_version))
            if request.generated >= sampling.max_tokens or len(request.tokens) >= context:
                return Finished(request.number, request.completion(FinishReason.LENGTH, self.weights_version))
            if i < len(work.draft) and token != work.draft[i]:
                break
        return None

    def _end(self, request: Request, *, remember: bool) -> None:
        del self._requests[request.number]
        self._scheduler.release(request, remember=remember)
        self._steady = None


def _row(request: Request) -> Row:
    assert request.row is not None
    return request.row
