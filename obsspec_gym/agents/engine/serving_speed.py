"""How long the steps of a simulated inference server take."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class ServingSpeed:
    """How fast a server is and how much it holds. Seconds and tokens.

    Attributes:
        step: Of a decoding step, before anything runs in it.
        step_sequence: More for each running sequence.
        step_context: More for each token of context of the running sequences.
        prefill: Of reading a chunk of a prompt, before its first token.
        prefill_token: More for each token read.
        prefill_least: Reading a chunk takes at least this.
        chunk: Prompt tokens read in one step at most.
        capacity: Tokens of KV cache.
        max_running: Sequences that run at once.
    """

    step: float
    step_sequence: float = 0.0
    step_context: float = 0.0
    prefill: float = 0.0
    prefill_token: float = 0.0
    prefill_least: float = 0.0
    chunk: int = 8192
    capacity: int = 10**9
    max_running: int = 256

    def decode(self, sequences: int, context: int) -> float:
        """Seconds of one decoding step."""
        return self.step + self.step_sequence * sequences + self.step_context * context

    def read(self, tokens: int) -> float:
        """Seconds in which ``tokens`` of prompts are read."""
        return max(self.prefill_least, self.prefill + self.prefill_token * tokens) if tokens else 0.0

    def slower(self, factor: float) -> ServingSpeed:
        """A server of the same kind all of whose steps take ``factor`` times as long."""
        return replace(
            self,
            step=factor * self.step,
            step_sequence=factor * self.step_sequence,
            step_context=factor * self.step_context,
            prefill=factor * self.prefill,
            prefill_token=factor * self.prefill_token,
            prefill_least=factor * self.prefill_least,
        )


@dataclass(slots=True)
class Burst:
    """Decoding steps that are taken in one jump; step ``i`` (from 0) takes ``first + i * growth``."""

    start: float
    first: float
    growth: float
    steps: int
    settled: int = 0

    def seconds(self, steps: int) -> float:
        return steps * self.first + self.growth * steps * (steps - 1) / 2

    def completed(self, now: float) -> int:
        """How many steps are over."""
        elapsed = now - self.start + 1e-9
        linear = self.first - self.growth / 2
        steps = elapsed / linear
        if self.growth > 0:
            steps = (math.sqrt(linear * linear + 2 * self.growth * elapsed) - linear) / self.growth
        return min(self.steps, int(steps))
