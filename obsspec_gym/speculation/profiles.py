"""Latency profiles: what a simulation takes as given, each number with where it comes from.

*Seen* numbers stand in a public source, *derived* ones follow from seen ones by a fit or a ratio, *assumed* ones were
chosen, before any result was looked at.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

from obsspec_gym.agents.engine.serving import ServingSpeed
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.seeding import derive_seed

_NORMAL = NormalDist()


def uniform(*names: int | str) -> float:
    """A number in (0, 1) that depends on names alone."""
    return (derive_seed(*names) + 0.5) / 2**63


@dataclass(frozen=True, slots=True)
class Lognormal:
    """A distribution of lengths or times.

    Attributes:
        median: Its median.
        sigma: Standard deviation of the logarithm; 0 for a constant.
        cap: Larger values are cut to this.
    """

    median: float
    sigma: float = 0.0
    cap: float = math.inf

    def at(self, quantile: float) -> float:
        """The value at a quantile in (0, 1)."""
        if not self.sigma:
            return min(self.cap, self.median)
        return min(self.cap, self.median * math.exp(self.sigma * _NORMAL.inv_cdf(quantile)))


@dataclass(frozen=True, slots=True)
class Mixture:
    """A mixture of distributions.

    Attributes:
        parts: Pairs of a weight and a distribution; the weights add up to 1.
    """

    parts: tuple[tuple[float, Lognormal], ...]

    def draw(self, *names: int | str) -> float:
        """A value that depends on names alone."""
        which = uniform("part", *names)
        for weight, part in self.parts:
            if which < weight:
                return part.at(uniform("value", *names))
            which -= weight
        return self.parts[-1][1].at(uniform("value", *names))


@dataclass(frozen=True, slots=True)
class Profile:
    """What a simulation takes as given.

    Attributes:
        name: What it is called.
        speed: The server that generates.
        output: Tokens of a completion.
        observation: Tokens of an observation.
        first_prompt: Tokens of system prompt and task.
        turns: Turns of an episode.
        tool: Seconds of a tool call inside the sandbox.
        round_trip: Seconds more for reaching the sandbox.
        rollouts: Episodes that one server generates for at a time.
        group: Episodes of one task.
        world_model_step: Seconds of a world model's decoding step: a predicted observation costs this a token.
        assumed: Names of the attributes that were assumed.
    """

    name: str
    speed: ServingSpeed
    output: Lognormal
    observation: Lognormal
    first_prompt: int
    turns: Lognormal
    tool: Mixture
    round_trip: Lognormal
    rollouts: int
    group: int
    world_model_step: float
    assumed: tuple[str, ...] = ()


_TOOL = Mixture(
    (
        (0.60, Lognormal(0.20, 0.8, 60.0)),
        (0.22, Lognormal(1.0, 0.7, 60.0)),
        (0.14, Lognormal(6.0, 0.7, 60.0)),
        (0.04, Lognormal(40.0, 0.6, 60.0)),
    )
)
"""Assumed, matched to seen quantiles of public traces of terminal agents: mean 3.1 s, median 0.39 s, 90 % at 6.9 s."""

_ASSUMED = ("output", "turns", "tool", "first_prompt", "observation")

PROFILES: Mapping[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile(
            name="paper-8b",
            # Derived: fits to published vLLM medians of Qwen3-8B in bfloat16 on one H100 (26 points, rms 1.9 %).
            speed=ServingSpeed(
                step=6.83e-3,
                step_sequence=0.0119e-3,
                step_context=0.0493e-6,
                prefill=3e-3,  # derived: time to first token 14, 34, 61, 254 ms at 128, 1k, 2k, 8k tokens
                prefill_token=1 / 32_500,
                prefill_least=14e-3,
                chunk=8192,  # assumed
                capacity=377_000,  # seen
            ),
            output=Lognormal(300, 0.9, 4096),
            observation=Lognormal(250, 1.1, 1500),
            first_prompt=2000,
            turns=Lognormal(20, 0.6, 50),
            tool=_TOOL,
            round_trip=Lognormal(0.067, 0.5),
            rollouts=32,
            group=8,
            world_model_step=2.6e-3,
            assumed=_ASSUMED,
        ),
        Profile(
            name="paper-32b",
            # Derived: fits to published vLLM medians of Qwen3-32B in bfloat16 on two H100 (12 points, rms 2.2 %).
            speed=ServingSpeed(
                step=14.3e-3,
                step_sequence=0.090e-3,
                step_context=0.040e-6,
                prefill=6e-3,
                prefill_token=1 / 15_000,
                chunk=8192,
                capacity=234_000,
            ),
            output=Lognormal(300, 0.9, 4096),
            observation=Lognormal(250, 1.1, 1500),
            first_prompt=2000,
            turns=Lognormal(20, 0.6, 25),
            tool=_TOOL,
            round_trip=Lognormal(0.067, 0.5),
            rollouts=64,
            group=4,
            world_model_step=2.6e-3,
            assumed=_ASSUMED,
        ),
    )
}


def get_profile(name: str) -> Profile:
    """The profile of a name.

    Raises:
        InvalidArgumentError: If there is none; the message lists those that exist.
    """
    if name not in PROFILES:
        raise InvalidArgumentError(f"unknown profile {name!r}; there are {', '.join(PROFILES)}")
    return PROFILES[name]
