"""``obsspec demo``: the same small agent on the same tasks, waiting for its tools and thinking under them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from obsspec_gym.cli.files import output_directory, write_json, write_trajectories
from obsspec_gym.cli.progress import EpisodeProgress
from obsspec_gym.cli.tables import experiment_table, verdict
from obsspec_gym.cli.workload import Workload
from obsspec_gym.envs.latency import LatencyProfile
from obsspec_gym.errors import MissingExtraError
from obsspec_gym.speculation.agents import Agents, installed
from obsspec_gym.speculation.experiment import Experiment
from obsspec_gym.speculation.results import ExperimentResult, Mode
from obsspec_gym.speculation.selector import Selector
from obsspec_gym.speculation.timeline import draw_timeline
from obsspec_gym.speculation.trace import write_trace


@dataclass(frozen=True)
class Demo:
    """What the demo runs and where it writes.

    Attributes:
        workload: Tasks and environments.
        agents: Policy and world model.
        make_selector: Makes what says how far ahead to speculate.
        out: Directory for what is written.
        pace: Seconds a decoding step of the policy takes at least.
    """

    workload: Workload
    agents: Agents
    make_selector: Callable[[], Selector]
    out: Path
    pace: float = 0.0

    def run(self) -> dict[str, Any]:
        """Runs every mode, writes the files, prints the table; returns what ``--json`` prints."""
        if not installed("matplotlib"):
            raise MissingExtraError("matplotlib", "lm")
        output_directory(self.out)
        with EpisodeProgress(len(self.workload.plan)) as progress, self.agents:
            progress.say(_introduction(self.workload, self.pace))
            self.agents.start()
            result = asyncio.run(self._run(progress))
        result_json = {
            **result.to_json(),
            "world_model_failures": _failures(result),
            "settings": _settings(self.workload, self.pace),
        }
        files = self._write(result, result_json)
        console = Console()
        console.print(experiment_table(result, title=_title(self.workload, self.pace)))
        console.print(verdict(result), highlight=False, markup=False)
        for reason, times in _failures(result).items():
            console.print(f"The world model failed {times} times: {reason}", highlight=False, markup=False)
        console.print(
            f"Written to {self.out}: " + ", ".join(path.name for path in files), highlight=False, markup=False
        )
        return result_json

    async def _run(self, progress: EpisodeProgress) -> ExperimentResult:
        await self.agents.warm_up()
        experiment = Experiment(
            self.workload.make_envs,
            self.workload.plan,
            self.agents.make_policy,
            self.agents.make_world_model,
            make_selector=self.make_selector,
            run_seed=self.workload.seed,
            on_begin=lambda mode, repeat: progress.begin(mode.value),
            on_turn=progress.turn,
            on_trajectory=progress.trajectory,
        )
        return await experiment.run()

    def _write(self, result: ExperimentResult, result_json: dict[str, Any]) -> list[Path]:
        files: list[Path] = []
        for run in result.runs:
            name = run.mode.value
            files.append(write_trajectories(run.collection.trajectories, self.out / f"{name}.jsonl"))
            files.append(write_trace(run.collection, self.out / f"{name}.perfetto.json"))
        latencies = {run.mode.value: run.measures.agent_latency or 0.0 for run in result.runs}
        picture = draw_timeline(
            result.turns_by_mode,
            self.out / "timeline.png",
            subtitle=_conditions(self.workload, self.pace),
            agent_latency=latencies,
        )
        return [*files, picture, write_json(result_json, self.out / "result.json")]


def _failures(result: ExperimentResult) -> dict[str, int]:
    """How often the world model failed, by reason."""
    return {
        reason: times
        for run in result.of(Mode.SPECULATIVE)
        for reason, times in run.collection.world_model_failures.items()
    }


def _introduction(workload: Workload, pace: float) -> str:
    count, tasks = len(workload.plan), len(workload.tasks)
    return (
        f"{count} episodes of {tasks} tasks of suite {workload.suite.name!r} in {workload.sandbox} sandboxes, "
        f"{workload.num_envs} at a time; {_conditions(workload, pace)}."
    )


def _conditions(workload: Workload, pace: float) -> str:
    if not pace:
        return _latency(workload.latency)
    return f"{_latency(workload.latency)}; the policy paced to {pace * 1e3:g} ms a token, as a larger model"


def _latency(latency: LatencyProfile) -> str:
    if latency.kind == "none":
        return "no delay added"
    return f"every command with the delay of a remote sandbox added (median {latency.median:g} s)"


def _title(workload: Workload, pace: float) -> str:
    return f"Suite {workload.suite.name}, {_conditions(workload, pace)}"


def _settings(workload: Workload, pace: float) -> dict[str, Any]:
    return {
        "pace": pace,
        "suite": workload.suite.name,
        "episodes": len(workload.plan),
        "group": workload.group,
        "envs": workload.num_envs,
        "sandbox": workload.sandbox,
        "latency": workload.latency.kind,
        "latency_median": workload.latency.median,
        "latency_sigma": workload.latency.sigma,
        "seed": workload.seed,
    }
