"""``obsspec rollout``: episodes to files."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from obsspec_gym.cli.files import TrajectoryFile, output_directory, write_json
from obsspec_gym.cli.progress import EpisodeProgress
from obsspec_gym.cli.tables import measures_table
from obsspec_gym.cli.workload import Workload
from obsspec_gym.speculation.agents import Agents
from obsspec_gym.speculation.collector import Collection, collect_async
from obsspec_gym.speculation.metrics import measure
from obsspec_gym.speculation.selector import Selector
from obsspec_gym.speculation.trace import write_trace
from obsspec_gym.speculation.trajectory import Trajectory


@dataclass(frozen=True)
class Rollout:
    """What is rolled out and where it is written.

    Attributes:
        workload: Tasks and environments.
        agents: Policy and world model.
        selector: How far ahead to speculate.
        out: Directory for what is written.
    """

    workload: Workload
    agents: Agents
    selector: Selector
    out: Path

    def run(self) -> dict[str, Any]:
        """Runs the episodes, writes each as it ends, prints the measures; returns what ``--json`` prints."""
        output_directory(self.out)
        with (
            EpisodeProgress(len(self.workload.plan)) as progress,
            TrajectoryFile(self.out / "trajectories.jsonl") as file,
            self.agents,
        ):
            self.agents.start()
            collection = asyncio.run(self._collect(progress, file))
        measures = measure(collection)
        trace = write_trace(collection, self.out / "trace.perfetto.json")
        failures = {"world model": collection.world_model_failures, "selector": collection.selector_failures}
        result = {
            **measures.to_json(),
            **{f"{name.replace(' ', '_')}_failures": reasons for name, reasons in failures.items()},
        }
        written = write_json(result, self.out / "measures.json")
        console = Console()
        console.print(measures_table(measures, title=f"Suite {self.workload.suite.name}"))
        for name, reasons in failures.items():
            for reason, times in reasons.items():
                console.print(f"The {name} failed {times} times: {reason}", highlight=False, markup=False)
        console.print(f"Written: {file.path}, {trace}, {written}", highlight=False, markup=False, soft_wrap=True)
        return result

    async def _collect(self, progress: EpisodeProgress, file: TrajectoryFile) -> Collection:
        await self.agents.warm_up()
        progress.begin("rollout")

        def finished(trajectory: Trajectory) -> None:
            file.write(trajectory)
            progress.trajectory(trajectory)

        policy = self.agents.make_policy()
        world_model = self.agents.make_world_model() if self.agents.predicts else None
        envs = self.workload.make_envs()
        try:
            return await collect_async(
                envs,
                self.workload.plan,
                policy,
                world_model,
                self.selector,
                run_seed=self.workload.seed,
                on_turn=progress.turn,
                on_trajectory=finished,
            )
        finally:
            envs.close()
            if world_model is not None:
                world_model.close()
