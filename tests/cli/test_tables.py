"""The one table and the one sentence of an experiment."""

from __future__ import annotations

import dataclasses
import io

import pytest
from rich.console import Console
from rich.table import Table

from obsspec_gym.agents.fakes import ScriptedWorldModel
from obsspec_gym.cli.tables import experiment_table, measures_table, result_table, verdict
from obsspec_gym.speculation.metrics import measure
from obsspec_gym.speculation.oracle import RecordedOracle
from obsspec_gym.speculation.results import ExperimentResult, Mode, Run
from tests.speculation.scenario import World


def printed(table: Table) -> str:
    out = io.StringIO()
    Console(file=out, width=80).print(table)
    return out.getvalue()


@pytest.fixture(scope="module")
def result() -> ExperimentResult:
    world = World(seed=5)
    sequential = world.run()
    collections = {
        Mode.SEQUENTIAL: sequential,
        Mode.SPECULATIVE: world.run(ScriptedWorldModel.right(world.oracle, seconds=0.01)),
        Mode.ORACLE: world.run(RecordedOracle(sequential.trajectories)),
    }
    return ExperimentResult(tuple(Run(mode, 0, each, measure(each)) for mode, each in collections.items()))


def changed(result: ExperimentResult, **change: object) -> ExperimentResult:
    """With the first step of the first speculative trajectory changed."""
    run = result.of(Mode.SPECULATIVE)[0]
    first, *others = run.collection.trajectories
    steps = (dataclasses.replace(first.steps[0], **change), *first.steps[1:])
    trajectories = (dataclasses.replace(first, steps=steps), *others)
    collection = dataclasses.replace(run.collection, trajectories=trajectories)
    return ExperimentResult((result.runs[0], dataclasses.replace(run, collection=collection)))


def test_all_modes_side_by_side_in_eighty_columns(result):
    text = printed(experiment_table(result, title="A title"))
    lines = {line.split("│")[1].strip(): line.split("│")[2:5] for line in text.splitlines() if line.startswith("│")}
    assert "sequential" in text
    assert "oracle (same D)" in text
    assert "…" not in text
    latency = result.of(Mode.SPECULATIVE)[0].measures.agent_latency
    assert lines["agent latency (mean)"][1].strip() == f"{latency:.2f} s"
    assert [cell.strip() for cell in lines["match rate"]] == ["–", "100 %", "100 %"]
    assert lines["share of the D-limit"][1].strip() == f"{100 * result.share_of_d_limit.median:.0f} %"
    assert lines["agent latency saved"][1].strip() == f"{100 - 100 * result.agent_latency_ratio.median:.0f} %"


def test_measures_of_one_collection(result):
    speculative = printed(measures_table(result.of(Mode.SPECULATIVE)[0].measures))
    assert "match rate of right" in speculative
    assert "match rate" not in printed(measures_table(result.of(Mode.SEQUENTIAL)[0].measures))


def test_the_verdict_names_the_first_difference_and_its_cause(result):
    assert verdict(result).startswith("Actions identical in every mode: ")
    seen = verdict(changed(result, observation="[exit 1] ~"))
    assert seen.startswith("Actions identical to identical observations; 1 of 4 compared episodes saw something else")
    assert "observation: other text: answer" in seen
    assert "[exit 1] ~" in seen
    acted = verdict(changed(result, action="rm"))
    assert acted.startswith("Actions differ: 1 of 4 compared episodes; first difference: task0#0, turn 0: action: ")


def test_nested_results_of_a_benchmark_are_printed():
    spread = {"median": 33.25, "low": 30.0, "high": 41.0, "repeats": 7}
    found = {
        "load": 0.123456,
        "bubblewrap": {"start_ms": 33.25, "spread": {"start_ms": spread}},
        "docker": {"start_ms": None, "reason": "no [daemon]"},
        "plain": {"differ": 2, "commands": ["date", "git log --oneline | head -3"]},
        "missing": [],
        "runs": [{"a": 1}, {"a": 2}],
    }
    text = printed(result_table(found, title="bench"))
    cells = [[cell.strip() for cell in line.split("│")[1:3]] for line in text.splitlines() if line.startswith("│")]
    labels = [line.split("│")[1].rstrip() for line in text.splitlines() if line.startswith("│")]
    assert ["load", "0.1235"] in cells
    assert labels[1:4] == [" bubblewrap", "   start_ms", "   spread"]
    assert ["start_ms", "33.25 (30 to 41, 7 repeats)"] in cells
    assert ["reason", "no [daemon]"] in cells
    assert ["commands", "date"] in cells
    assert ["", "git log --oneline | head -3"] in cells
    assert ["missing", "–"] in cells
    assert ["runs", "2 entries"] in cells
