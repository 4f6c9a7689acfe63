"""How much waiting disappears? The same rollouts of the shipped pair, sequential, speculative and with an oracle.

Real sandboxes, real models, interleaved repeats: once with a remote sandbox service's latency added to every command,
once without. World-model time is charged: it runs on the same machine, beside the policy.
"""

from __future__ import annotations

from typing import Any

from obsspec_gym.agents.lm_policy import LMPolicy, load_policy
from obsspec_gym.agents.world_model.loading import load_world_model
from obsspec_gym.envs.latency import LatencyProfile
from obsspec_gym.envs.tasks import EVALUATION, get_suite
from obsspec_gym.envs.vector import TerminalVectorEnv
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.speculation.experiment import run_modes
from obsspec_gym.speculation.results import ExperimentResult, Mode
from obsspec_gym.speculation.selector import FixedSelector
from obsspec_gym.speculation.slot import Episode
from obsspec_gym.types import EpisodeId, Sampling

DEFAULTS: dict[str, Any] = {
    "repeats": 5,
    "tasks": 2,
    "group": 8,
    "envs": 16,
    "depth": 1,
    "breadth": 1,
    "seed": 0,
    "suite": "basics",
    "latency": "remote",
}
FULL: dict[str, Any] = {"repeats": 9, "tasks": 6}


def run(
    *,
    repeats: int,
    tasks: int,
    group: int,
    envs: int,
    depth: int,
    breadth: int,
    seed: int,
    suite: str,
    latency: str,
    report: Any,
) -> dict[str, Any]:
    """Medians over interleaved repeats, each with its spread.

    Returns:
        The measures with the latency profile, and under ``without_profile`` those without.
    """
    if tasks < 1 or group < 1 or tasks > len(EVALUATION):
        raise InvalidArgumentError(f"tasks must be in 1..{len(EVALUATION)} and group >= 1, got {tasks} and {group}")
    source = get_suite(suite)
    chosen = [source.task((seed * tasks + index) % len(EVALUATION)) for index in range(tasks)]
    episodes = [
        Episode(EpisodeId(task.id, sample), options={"task": task, "sample": sample})
        for task in chosen
        for sample in range(group)
    ]

    def experiment(profile: LatencyProfile, name: str) -> ExperimentResult:
        def make_envs() -> TerminalVectorEnv:
            return TerminalVectorEnv(min(envs, len(episodes)), suite=source, latency=profile)

        return run_modes(
            make_envs,
            episodes,
            _make_policy,
            lambda: load_world_model("cascade", driver="process"),
            modes=(Mode.SEQUENTIAL, Mode.SPECULATIVE, Mode.ORACLE, Mode.LIMIT),
            selector=FixedSelector(depth, breadth),
            repeats=repeats,
            run_seed=seed,
            on_begin=lambda mode, repeat: report(f"{name}: repeat {repeat + 1} of {repeats}, {mode.value}"),
        )

    with_profile = experiment(LatencyProfile.parse(latency), f"latency {latency}")
    without = experiment(LatencyProfile.parse("none"), "no added latency")
    return {**with_profile.to_json(), "without_profile": without.to_json()}


def _make_policy() -> LMPolicy:
    """A policy of its own for every run, so that no run finds the KV cache of another."""
    return load_policy("shipped", driver="process", sampling=Sampling(temperature=1.0, max_tokens=96))
