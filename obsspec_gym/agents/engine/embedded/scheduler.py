"""Who takes part in the next step, and with how many tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from obsspec_gym.agents.engine.embedded.kv import KVRows, row_length
from obsspec_gym.agents.engine.embedded.prefix import PrefixTree, common_length
from obsspec_gym.agents.engine.embedded.requests import Request
from obsspec_gym.agents.engine.embedded.step_times import StepTimes
from obsspec_gym.types import Priority

_DRAFT_TOKENS = 16
"""Draft tokens verified in one pass: a wrong draft wastes at most so many rows."""

_WORTH_WAITING = 16
"""Wait for a prefix that is being computed if that saves more than so many tokens."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a core may use.

    Attributes:
        batch_tokens: Rows in one step: bounds how long a step takes, and so how long a newcomer waits.
        speculative_tokens: Rows that speculative requests may add to a step that committed ones are in, when those
            have more than one row each (prompts, drafts).
        capacity_tokens: KV slots in all, for running requests and remembered prefixes.
        running: Requests that run at once.
    """

    batch_tokens: int = 512
    speculative_tokens: int = 32
    capacity_tokens: int = 65536
    running: int = 64


@dataclass(frozen=True, slots=True)
class Work:
    """One request's part in a step: tokens it knows but has not computed, then draft tokens to verify.

    Attributes:
        request: Whose.
        known: How many tokens of ``request.tokens`` from ``request.computed`` on.
        draft: Draft tokens behind them.
        samples: Whether the known tokens are computed to their end, so that tokens can be drawn.
    """

    request: Request
    known: int
    draft: tuple[int, ...]
    samples: bool

    @property
    def tokens(self) -> list[int]:
        """The tokens to compute."""
        start = self.request.computed
        return [*self.request.tokens[start : start + self.known], *self.draft]

    @property
    def rows(self) -> int:
        """How many they are."""
        return self.known + len(self.draft)

    @property
    def wanted(self) -> int:
        """How many of them need logits."""
        return 1 + len(self.draft) if self.samples else 0


@dataclass(frozen=True, slots=True)
class Plan:
    """A step.

    Attributes:
        works: Who takes part.
        paused: How many speculative requests wait, because the step would get slower than they are worth.
    """

    works: list[Work]
    paused: int


class Scheduler:
    """Keeps the requests that wait and those that run, and the memory they use.

    A request is admitted when the room it can come to need is there, so a running request never lacks memory.
    Remembered prefixes make way for requests, and running speculative requests for committed ones that wait. Where
    committed requests would lose more by a speculative one's part in a step than it is worth
    (:class:`~obsspec_gym.agents.engine.embedded.step_times.StepTimes`), it keeps what it has computed and waits.

    Args:
        limits: What may be used.
        context: Positions the model can take.
        rows: Where keys and values are.
        prefixes: What was computed before.
        times: How long steps take.
    """

    def __init__(self, limits: Limits, context: int, rows: KVRows, prefixes: PrefixTree, times: StepTimes) -> None:
        self.limits = limits
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self._context = context
        self._rows = rows
        self._prefixes = prefixes
        self._times = times

    def reservation(self, request: Request) -> int:
        """KV slots that a request can come to need."""
        most = min(request.prompt_length + request.sampling.max_tokens, self._context)
        return row_length(most)

    def admit(self) -> bool:
        """Turns waiting requests into running ones, as far as there is room. Returns whether any was."""
        admitted = False
        for request in sorted(self.waiting, key=lambda r: r.rank):
            if self._better_wait(request):
                continue
            if not self._make_room(request):
                break  # whoever comes later must not overtake
            self._start(request)
            admitted = True
        return admitted

    def plan(self) -> Plan:
        """The next step."""
        limits = self.limits
        ranked = sorted(self.running, key=lambda r: (r.priority, len(r.tokens) - r.computed > 1, r.number))
        works: list[Work] = []
        rows = committed = paused = 0
        extra = limits.speculative_tokens
        for request in ranked:
            room = limits.batch_tokens - rows
            if room == 0:
                break
            speculative = request.priority is Priority.SPECULATIVE
            if speculative and committed:
                if not self._times.worth(rows, committed):
                    paused += 1
                    continue
                room = min(room, max(1, extra))
            work = self._work(request, room)
            works.append(work)
            rows += work.rows
            committed += not speculative
            if speculative and work.rows > 1:
                extra -= work.rows
        return Plan(works, paused)

    def release(self, request: Request, *, remember: bool) -> None:
        """Takes a request out, running or waiting, and frees its row."""
        if request.row is None:
            self.waiting.remove(request)
            return
        self.running.remove(request)  # first: what it had reserved is room to remember it in
        if remember:
            self.remember(request)
        self._rows.free(request.row)
        request.row = None

    def remember(self, request: Request) -> None:
        """Copies what a running request has computed to the remembered prefixes."""
        assert request.row is not None
        count = request.computed
        self._prefixes.insert(request.tokens[:count], self._rows.view(request.row, 0, count))
        self._fit()

    def computed_tokens(self) -> int:
        """KV slots that hold something."""
        return self._prefixes.size + sum(r.computed for r in self.running)

    def _fit(self) -> None:
        self._prefixes.shrink(self.limits.capacity_tokens - sum(map(self.reservation, self.running)))

    def _better_wait(self, request: Request) -> bool:
        """Whether a running request of no lower rank is about to compute much of this one's prompt."""
        known = self._prefixes.known(request.tokens)
        return any(
            other.computed < other.prompt_length
            and other.rank < request.rank
            and other.priority is Priority.COMMITTED
            and common_length(request.tokens, other.tokens[: other.prompt_length]) > known + _WORTH_WAITING
            for other in self.running
        )

    def _make_room(self, request: Request) -> bool:
        needed = self.reservation(request)
        victims = sorted((r for r in self.running if r.priority > request.priority), key=lambda r: r.rank)
        used, count = sum(map(self.reservation, self.running)), len(self.running)
        chosen = []
        while used + needed > self.limits.capacity_tokens or count >= self.limits.running:
            if not victims:
                return False
            victim = victims.pop()
            chosen.append(victim)
            used -= self.reservation(victim)
            count -= 1
        for victim in chosen:
            self.release(victim, remember=True)
            victim.computed = 0
            self.waiting.append(victim)
        return True

    def _start(self, request: Request) -> None:
        """Gives a request a row, with what is known of its tokens."""
        pieces = self._prefixes.match(request.tokens, len(request.tokens) - 1)
        count = sum(piece.shape[3] for piece in pieces)
        request.row, request.computed = self._rows.take(count + 1), count
        if pieces:
            self._rows.write(request.row, 0, torch.cat(pieces, dim=3))
        self.waiting.remove(request)
        self.running.append(request)
        self._fit()

    def _work(self, request: Request, room: int) -> Work:
        assert request.row is not None
        # All rows of a request in one step are in one size class: its next token's.
        length = row_length(request.computed + 1)
        if self._rows.classes[request.row.size_class].length != length:
            request.row = self._rows.moved(request.row, request.computed, length)
        room = min(room, length - request.computed)
        pending = len(request.tokens) - request.computed
        known = min(pending, room)
        if known < pending:
            return Work(request, known, (), samples=False)
        done = request.generated
        most = min(
            room - known, _DRAFT_TOKENS, request.sampling.max_tokens - done - 1, self._context - len(request.tokens) - 1
        )
        draft = request.draft[done : done + most] if most > 0 else ()
        return Work(request, known, draft, samples=True)
