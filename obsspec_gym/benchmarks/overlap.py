"""How much waiting disappears? The same rollouts of the shipped pair, sequential, speculative and with an oracle.

Real sandboxes, real models, interleaved repeats: once with a remote sandbox service's latency added to every command,
once without. World-model time is charged: it runs on the same machine, beside the policy.

A remote sandbox does not compute on the policy's machine, so here the tasks' programs have little to do (``work``; what
they print is the same) and the added latency is what a tool takes. As many rollouts share the engine as a replica
serves in practice (32), which is what makes a generation slow enough to be worth hiding (G/T).
"""

from __future__ import annotations

import asyncio
from typing import Any

from obsspec_gym.envs.latency import LatencyProfile
from obsspec_gym.envs.tasks import EVALUATION, get_suite
from obsspec_gym.envs.vector import TerminalVectorEnv
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.speculation.agents import Agents
from obsspec_gym.speculation.experiment import Experiment
from obsspec_gym.speculation.results import ExperimentResult, Mode
from obsspec_gym.speculation.selector import FixedSelector
from obsspec_gym.speculation.slot import Episode
from obsspec_gym.types import EpisodeId

DEFAULTS: dict[str, Any] = {
    "repeats": 5,
    "tasks": 4,
    "group": 8,
    "envs": 32,
    "depth": 1,
    "breadth": 1,
    "seed": 0,
    "suite": "basics",
    "latency": "remote",
    "work": 0.05,
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
    work: float,
    report: Any,
) -> dict[str, Any]:
    """Medians over interleaved repeats, each with its spread.

    Returns:
        The measures with the latency profile, and under ``without_profile`` those without.
    """
    if tasks < 1 or group < 1 or tasks > len(EVALUATION):
        raise InvalidArgumentError(f"tasks must be in 1..{len(EVALUATION)} and group >= 1, got {tasks} and {group}")
    source = get_suite(suite, work=work)
    chosen = [source.task((seed * tasks + index) % len(EVALUATION)) for index in range(tasks)]
    episodes = [
        Episode(EpisodeId(task.id, sample), options={"task": task, "sample": sample})
        for task in chosen
        for sample in range(group)
    ]

    agents = Agents("shipped", "cascade", source, chosen, max_tokens=96)

    def experiment(profile: LatencyProfile, name: str) -> Experiment:
        return Experiment(
            lambda: TerminalVectorEnv(min(envs, len(episodes)), suite=source, latency=profile),
            episodes,
            agents.make_policy,
            agents.make_world_model,
            modes=(Mode.SEQUENTIAL, Mode.SPECULATIVE, Mode.ORACLE, Mode.LIMIT),
            selector=FixedSelector(depth, breadth),
            repeats=repeats,
            run_seed=seed,
            on_begin=lambda mode, repeat: report(f"{name}: repeat {repeat + 1} of {repeats}, {mode.value}"),
        )

    async def both() -> tuple[ExperimentResult, ExperimentResult]:
        await agents.warm_up()
        with_profile = await experiment(LatencyProfile.parse(latency), f"latency {latency}").run()
        return with_profile, await experiment(LatencyProfile.parse("none"), "no added latency").run()

    with agents:
        agents.start()
        with_profile, without = asyncio.run(both())
    return {
        **with_profile.to_json(),
        "rollouts_per_run": len(episodes),
        "envs": min(envs, len(episodes)),
        "work": work,
        "without_profile": without.to_json(),
    }
