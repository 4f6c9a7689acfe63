"""What vLLM's scheduler says of itself after each step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class SchedulerMetrics:
    """The scheduler's figures.

    Attributes:
        running: Requests in its batch.
        waiting: Requests in its queue.
        usage: Share of the KV cache's blocks that requests hold; blocks that are only remembered are free.
        capacity_tokens: Tokens that the KV cache has room for.
        prefix_queries: Prompt tokens looked up in the prefix cache so far.
        prefix_hits: How many of them were there.
        preemptions: How often a request lost its memory to another so far.
        accepted_drafts: How many tokens of vLLM's own drafts were right so far.
    """

    running: int = 0
    waiting: int = 0
    usage: float = 0.0
    capacity_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    accepted_drafts: int = 0

    def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
        """Takes over what vLLM says after a step, as one of its stat loggers."""
        if iteration_stats is not None:
            self.preemptions += iteration_stats.num_preempted_reqs
        if scheduler_stats is None:
            return
        self.running = scheduler_stats.num_running_reqs
        self.waiting = scheduler_stats.num_waiting_reqs
        self.usage = scheduler_stats.kv_cache_usage
        self.prefix_queries += scheduler_stats.prefix_cache_stats.queries
        self.prefix_hits += scheduler_stats.prefix_cache_stats.hits
        if scheduler_stats.spec_decoding_stats is not None:
            self.accepted_drafts += scheduler_stats.spec_decoding_stats.num_accepted_tokens

    def log_engine_initialized(self) -> None:
        """Nothing is logged."""

    def log(self) -> None:
        """Nothing is logged."""

    def record_sleep_state(self, *_: Any) -> None:
        """It is never put to sleep."""
