"""How much waiting disappears? The same rollouts of the shipped pair, sequential, speculative and with an oracle.

Real sandboxes, real models, interleaved repeats: once with a remote sandbox service's latency added to every command,
once without. World-model time is charged: it runs on the same machine, beside the policy.

With the profile, the machine stands for a remote one. A remote sandbox does not compute where the policy does, so the
tasks' programs have little to do (``work``; what they print is the same), and the added latency is what a tool takes.
And the shipped policy writes a dozen tokens an action where a real one writes hundreds, so its steps are paced to those
of a larger model (``pace``): generation and tools then take times of the same order (G/T). Without the profile,
everything is as this machine does it: full work, no pace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from obsspec_gym.envs.latency import LatencyProfile
from obsspec_gym.envs.tasks import EVALUATION, Suite, get_suite
from obsspec_gym.envs.vector import TerminalVectorEnv
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.speculation.adaptive import AdaptiveSelector
from obsspec_gym.speculation.agents import Agents
from obsspec_gym.speculation.experiment import Experiment
from obsspec_gym.speculation.results import ExperimentResult, Mode
from obsspec_gym.speculation.selector import FixedSelector, Selector
from obsspec_gym.speculation.slot import Episode
from obsspec_gym.types import EpisodeId

DEFAULTS: dict[str, Any] = {
    "repeats": 5,
    "tasks": 4,
    "group": 4,
    "envs": 16,
    "max_turns": 8,
    "selector": "fixed",
    "depth": 1,
    "breadth": 1,
    "seed": 0,
    "suite": "basics",
    "latency": "remote",
    "work": 0.05,
    "pace": 0.03,
}
FULL: dict[str, Any] = {"repeats": 9, "group": 8, "max_turns": 16}


def run(
    *,
    repeats: int,
    tasks: int,
    group: int,
    envs: int,
    max_turns: int,
    selector: str,
    depth: int,
    breadth: int,
    seed: int,
    suite: str,
    latency: str,
    work: float,
    pace: float,
    report: Callable[[str], None],
) -> dict[str, Any]:
    """Medians over interleaved repeats, each with its spread.

    Returns:
        The measures with the latency profile, and under ``without_profile`` those without.
    """
    if tasks < 1 or group < 1 or tasks > len(EVALUATION):
        raise InvalidArgumentError(f"tasks must be in 1..{len(EVALUATION)} and group >= 1, got {tasks} and {group}")
    make = {"adaptive": AdaptiveSelector, "fixed": FixedSelector}.get(selector)
    if make is None:
        raise InvalidArgumentError(f"selector must be adaptive or fixed, got {selector!r}")
    common = _Common(tasks, group, envs, max_turns, partial(make, depth, breadth), repeats, seed, report)
    remote = common.measure(get_suite(suite, work=work), LatencyProfile.parse(latency), pace)
    local = common.measure(get_suite(suite), LatencyProfile.parse("none"), 0.0)
    return {**remote.to_json(), "pace": pace, "work": work, "without_profile": local.to_json()}


@dataclass(frozen=True, slots=True)
class _Common:
    """What the measurements with and without the profile share."""

    tasks: int
    group: int
    envs: int
    max_turns: int
    make_selector: Callable[[], Selector]
    repeats: int
    seed: int
    report: Callable[[str], None]

    def measure(self, suite: Suite, latency: LatencyProfile, pace: float) -> ExperimentResult:
        """All modes, interleaved, with engines that are warm before the first."""
        chosen = [suite.task((self.seed * self.tasks + index) % len(EVALUATION)) for index in range(self.tasks)]
        episodes = [
            Episode(EpisodeId(task.id, sample), options={"task": task, "sample": sample})
            for task in chosen
            for sample in range(self.group)
        ]
        count = min(self.envs, len(episodes))
        with Agents("shipped", "cascade", suite, chosen, max_tokens=96, pace=pace) as agents:
            experiment = Experiment(
                lambda: TerminalVectorEnv(count, max_episode_steps=self.max_turns, suite=suite, latency=latency),
                episodes,
                agents.make_policy,
                agents.make_world_model,
                modes=(Mode.SEQUENTIAL, Mode.SPECULATIVE, Mode.ORACLE, Mode.LIMIT),
                make_selector=self.make_selector,
                repeats=self.repeats,
                run_seed=self.seed,
                on_begin=lambda mode, repeat: self.report(
                    f"latency {latency.kind}: repeat {repeat + 1} of {self.repeats}, {mode.value}"
                ),
            )

            async def run_all() -> ExperimentResult:
                await agents.warm_up()
                return await experiment.run()

            agents.start()
            return asyncio.run(run_all())
