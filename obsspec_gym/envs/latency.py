"""Delays as a remote sandbox service adds them, the same in every run."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.seeding import derive_seed

LatencyKind = Literal["lognormal", "none"]

_MANTISSA = 52  # bits of a seed that make a float strictly between 0 and 1


@dataclass(frozen=True, slots=True)
class LatencyProfile:
    """How long a command waits for a sandbox that is elsewhere, on top of what it runs.

    A delay is addressed, like all randomness here: it depends on the episode and the turn, not on when or in which
    environment the command ran. Sequential and speculative runs of the same episodes wait the same seconds.

    Attributes:
        median: Median delay, in seconds.
        sigma: Standard deviation of the delay's natural logarithm; 0 makes every delay the median.
        kind: ``"lognormal"``, or ``"none"`` for no delay at all.
        seed: Tells independent profiles of the same shape apart.

    Example:
        >>> profile = LatencyProfile.parse("lognormal:0.3,0.7")
        >>> profile == LatencyProfile(median=0.3, sigma=0.7) == LatencyProfile.parse("remote")
        True
        >>> profile.delay("count/3", sample=0, turn=1) == profile.delay("count/3", sample=0, turn=1)
        True
        >>> LatencyProfile.parse("none").delay("count/3", sample=0, turn=1)
        0.0
    """

    median: float = 0.3
    sigma: float = 0.7
    kind: LatencyKind = "lognormal"
    seed: int = 0

    GRAMMAR: ClassVar[str] = "'none', 'remote' or 'lognormal:MEDIAN,SIGMA' (seconds)"

    def __post_init__(self) -> None:
        if self.kind not in get_args(LatencyKind):
            raise InvalidArgumentError(f"kind must be one of {get_args(LatencyKind)}, got {self.kind!r}")
        if not (math.isfinite(self.median) and (self.median > 0 or self.kind == "none")):
            raise InvalidArgumentError(f"median must be a positive number of seconds, got {self.median!r}")
        if not (math.isfinite(self.sigma) and self.sigma >= 0):
            raise InvalidArgumentError(f"sigma must be a finite number >= 0, got {self.sigma!r}")

    @classmethod
    def parse(cls, text: str, seed: int = 0) -> LatencyProfile:
        """Reads a profile as it is written on a command line.

        Args:
            text: ``none``, ``remote`` (the defaults of this class) or ``lognormal:MEDIAN,SIGMA``.
            seed: As the attribute.

        Raises:
            InvalidArgumentError: If it is none of these.
        """
        if text == "none":
            return cls(0.0, 0.0, "none", seed)
        if text == "remote":
            return cls(seed=seed)
        kind, _, numbers = text.partition(":")
        try:
            median, sigma = (float(number) for number in numbers.split(","))
        except ValueError:
            kind = ""
        if kind != "lognormal":
            raise InvalidArgumentError(f"a latency is {cls.GRAMMAR}, got {text!r}")
        return cls(median, sigma, seed=seed)

    def delay(self, task_id: str, sample: int, turn: int) -> float:
        """The delay of one command, in seconds: a pure function of the profile and these.

        Args:
            task_id: The task.
            sample: The member of the group.
            turn: Index of the turn within the episode, from 0.
        """
        if self.kind == "none":
            return 0.0
        bits = derive_seed("latency", self.seed, task_id, sample, turn) >> (63 - _MANTISSA)
        normal = statistics.NormalDist().inv_cdf((bits + 0.5) / 2**_MANTISSA)
        return self.median * math.exp(self.sigma * normal)
