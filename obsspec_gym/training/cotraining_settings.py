"""How a world model is trained beside the policy."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from obsspec_gym.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True, kw_only=True)
class CoTraining:
    """Settings of co-training.

    Attributes:
        steps: Optimiser steps of the world model at each policy step.
        batch_tokens: Tokens of one of them, roughly.
        learning_rate: Of AdamW, constant after the warm-up.
        warm_up: Optimiser steps in which the rate rises.
        weight_decay: Of AdamW.
        ema_decay: What predicts is a moving average of what is trained: so much of it stays at each policy step. 0
            predicts with the last weights.
        max_grad_norm: The gradient is clipped to this norm.
        window: Policy steps that a transition stays in the replay.
        capacity_tokens: Tokens that the replay holds at most.
        half_life: In policy steps: a transition that is so much older is drawn half as often.
        time_weight: How much more a transition counts in the loss for the seconds that a right prediction would hide:
            its weight is 1 + time_weight * seconds / mean seconds of the batch. Seconds are measured, so above 0 two
            runs differ by what their clocks say.
        seconds_per_token: What a predicted token costs, for the seconds that a prediction would hide.
        frozen_twin: Whether the world model as it was at first is scored beside the live one.
        device: Where the world model is trained; it is in float32 there.
        seed: Seeds the draws from the replay.
        strict: Whether a failure ends the run; otherwise it is told, and the run goes on without co-training.

    Raises:
        InvalidArgumentError: If a value is out of range.
    """

    steps: int = 4
    batch_tokens: int = 2048
    learning_rate: float = 6e-4
    warm_up: int = 10
    weight_decay: float = 0.01
    ema_decay: float = 0.8
    max_grad_norm: float = 1.0
    window: int = 64
    capacity_tokens: int = 1_000_000
    half_life: float = 8.0
    time_weight: float = 0.0
    seconds_per_token: float = 0.0
    frozen_twin: bool = True
    device: str = "cpu"
    seed: int = 0
    strict: bool = False

    def __post_init__(self) -> None:
        may_be_zero = {"warm_up", "weight_decay", "ema_decay", "time_weight", "seconds_per_token"}
        for name, value in asdict(self).items():
            if isinstance(value, bool | str) or name == "seed":
                continue
            if not math.isfinite(value) or value < 0 or (value == 0 and name not in may_be_zero):
                least = ">= 0" if name in may_be_zero else "> 0"
                raise InvalidArgumentError(f"{name} must be a number {least}, got {value}")
        if self.ema_decay >= 1:
            raise InvalidArgumentError(f"ema_decay must be below 1, or nothing is learnt, got {self.ema_decay}")
