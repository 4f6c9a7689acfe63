"""Latency profiles: what a simulation takes as given, each number with where it comes from.

*Seen* numbers stand in a public source, *derived* ones follow from seen ones by a fit or a ratio, *assumed* ones were
chosen, before any result was looked at.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, Protocol

from obsspec_gym.agents.engine.serving_speed import ServingSpeed
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.seeding import derive_seed
from obsspec_gym.speculation.record import TurnRecord

_NORMAL = NormalDist()


def uniform(*names: int | str) -> float:
    """A number in (0, 1) that depends on names alone."""
    return (derive_seed(*names) + 0.5) / 2**63


class Distribution(Protocol):
    """A distribution of lengths or times."""

    def at(self, quantile: float) -> float:
        """The value at a quantile in (0, 1)."""
        ...

    def scaled(self, factor: float) -> Distribution:
        """Every value times a factor."""
        ...


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

    def scaled(self, factor: float) -> Lognormal:
        """Every value times a factor."""
        return Lognormal(factor * self.median, self.sigma, factor * self.cap)


@dataclass(frozen=True, slots=True)
class Empirical:
    """The distribution of what was seen.

    Attributes:
        values: Ascending; at least one.
    """

    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> Empirical:
        """That of some values, in any order."""
        return cls(tuple(sorted(values)))

    def at(self, quantile: float) -> float:
        """The value at a quantile in (0, 1)."""
        return self.values[min(len(self.values) - 1, int(quantile * len(self.values)))]

    def scaled(self, factor: float) -> Empirical:
        """Every value times a factor."""
        return Empirical(tuple(factor * value for value in self.values))


@dataclass(frozen=True, slots=True)
class Mixture:
    """A mixture of distributions.

    Attributes:
        parts: Pairs of a weight and a distribution; the weights add up to 1.
    """

    parts: tuple[tuple[float, Distribution], ...]

    def draw(self, *names: int | str) -> float:
        """A value that depends on names alone."""
        which = uniform("part", *names)
        for weight, part in self.parts:
            if which < weight:
                return part.at(uniform("value", *names))
            which -= weight
        return self.parts[-1][1].at(uniform("value", *names))

    def scaled(self, factor: float) -> Mixture:
        """Every value times a factor."""
        return Mixture(tuple((weight, part.scaled(factor)) for weight, part in self.parts))


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
        assumed: Names of the attributes that were assumed, of those that can be scaled.
    """

    name: str
    speed: ServingSpeed
    output: Distribution
    observation: Distribution
    first_prompt: int
    turns: Distribution
    tool: Mixture
    round_trip: Distribution
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

_ASSUMED: tuple[str, ...] = ("output", "turns", "tool", "first_prompt", "observation")

_PAPER_8B = Profile(
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
)
_PAPER_32B = replace(
    _PAPER_8B,
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
    turns=Lognormal(20, 0.6, 25),
    rollouts=64,
    group=4,
)
PROFILES: Mapping[str, Profile] = {profile.name: profile for profile in (_PAPER_8B, _PAPER_32B)}


def get_profile(name: str) -> Profile:
    """The profile of a name.

    Raises:
        InvalidArgumentError: If there is none; the message lists those that exist.
    """
    if name not in PROFILES:
        raise InvalidArgumentError(f"unknown profile {name!r}; there are {', '.join(PROFILES)}")
    return PROFILES[name]


SCALABLE = ("output", "turns", "tool", "first_prompt", "observation", "round_trip")
"""Attributes of a profile that can be scaled."""


def with_scaled(profile: Profile, attribute: str, factor: float) -> Profile:
    """The profile with one of its attributes scaled: how much a result hangs on an assumption.

    Raises:
        InvalidArgumentError: If it has no such attribute that can be scaled.
    """
    if attribute not in SCALABLE:
        raise InvalidArgumentError(f"a profile has {', '.join(SCALABLE)} to scale, got {attribute!r}")
    value: Any = getattr(profile, attribute)
    scaled: Any = max(1, round(factor * value)) if isinstance(value, int) else value.scaled(factor)
    return replace(profile, **{attribute: scaled})


def profile_of_turns(name: str, turns: Sequence[TurnRecord], like: Profile) -> Profile:
    """The profile of a run: completions, tools and lengths of episodes as they were, the server fitted to its pace.

    How a server slows with its batch, and what observations weigh, a trace does not tell: both are taken from another
    profile, the former in proportion.

    Args:
        name: What it is called.
        turns: The run's turns.
        like: Whose assumptions are taken over.

    Raises:
        InvalidArgumentError: If there is no turn with a generation of its own.
    """
    generated = [turn for turn in turns if turn.generation is not None and turn.tokens and not turn.hit]
    if not generated:
        raise InvalidArgumentError("the trace has no turn whose action was generated from the truth")
    step = statistics.median(turn.generation.seconds / turn.tokens for turn in generated if turn.generation is not None)
    lengths = Counter(turn.episode for turn in turns)
    tasks = Counter(episode.task_id for episode in lengths)
    return Profile(
        name=name,
        speed=like.speed.slower(step / like.speed.decode(1, like.first_prompt)),
        output=Empirical.of([turn.tokens for turn in generated]),
        observation=like.observation,
        first_prompt=like.first_prompt,
        turns=Empirical.of(list(lengths.values())),
        tool=Mixture(((1.0, Empirical.of([turn.tool.seconds for turn in turns])),)),
        round_trip=Lognormal(0.0),
        rollouts=len(lengths),
        group=max(tasks.values()),
        world_model_step=like.world_model_step,
        assumed=("observation", "first_prompt"),
    )
