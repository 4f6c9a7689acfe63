"""Simulations beside each other: what speculation saves, and what that hangs on."""

from __future__ import annotations

from typing import Any

from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.speculation.profiles import Profile, with_scaled
from obsspec_gym.speculation.simulate import Setting, Simulated, simulate

FACTORS = (0.5, 2.0)
"""By which assumptions are scaled to see what hangs on them."""


def compare(sequential: Simulated, speculative: Simulated) -> dict[str, Any]:
    """The ratios of two simulations of the same episodes."""
    before, after = sequential.measures, speculative.measures
    if not before.agent_latency or not after.agent_latency or not before.throughput or not after.throughput:
        raise InvalidArgumentError("there is nothing to compare: no rollout was finished")
    return {
        "agent_latency_ratio": after.agent_latency / before.agent_latency,
        "throughput_ratio": after.throughput / before.throughput,
        "generation_tool_ratio": before.generation_tool_ratio,
        "discarded_tokens": after.discarded_tokens,
    }


def sensitivity_of(
    profile: Profile, off: Setting, on: Setting, *, rollouts: int, envs: int, seed: int
) -> dict[str, dict[str, float]]:
    """The ratio of agent latency with each assumed parameter scaled."""
    ratios: dict[str, dict[str, float]] = {}
    for attribute in profile.assumed:
        ratios[attribute] = {}
        for factor in FACTORS:
            other = with_scaled(profile, attribute, factor)
            runs = [simulate(other, setting, rollouts=rollouts, envs=envs, seed=seed) for setting in (off, on)]
            ratios[attribute][f"x{factor:g}"] = compare(*runs)["agent_latency_ratio"]
    return ratios
