"""``obsspec simulate``: a profile's run without speculation and with it, and what that hangs on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from obsspec_gym.cli import main
from obsspec_gym.cli.simulate import find_profile
from obsspec_gym.speculation.trace import write_trace
from tests.speculation.scenario import World, moody_world_model


def simulated(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert main(["simulate", *arguments, "--json"]) == 0
    result: dict[str, object] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return result


SMALL = ("--envs", "2", "--rollouts", "2", "--no-sensitivity")


def test_it_compares_both_runs(capsys: pytest.CaptureFixture[str]) -> None:
    always = simulated(capsys, *SMALL, "--match-rate", "1", "--prediction-latency", "0")
    never = simulated(capsys, *SMALL, "--match-rate", "0", "--prediction-latency", "0")
    assert always["agent_latency_ratio"] < 1 <= never["agent_latency_ratio"]  # type: ignore[operator]
    assert always["sequential"] == never["sequential"]
    assert always == simulated(capsys, *SMALL, "--match-rate", "1", "--prediction-latency", "0")


def test_it_shows_what_hangs_on_assumptions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--profile", "paper-32b", "--envs", "1", "--rollouts", "1", "--sensitivity"]) == 0
    shown = capsys.readouterr().out
    assert "agent latency x" in shown
    assert all(f"if {name} is x0.5" in shown for name in ("output", "turns", "tool", "first_prompt", "observation"))


def test_adaptive_is_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    result = simulated(capsys, *SMALL, "--adaptive", "--depth", "4", "--breadth", "2")
    assert result["adaptive"] is True


def test_a_trace_is_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = World()
    collection = world.run(moody_world_model(world, 0.01))
    file = write_trace(collection, tmp_path / "run.perfetto.json")
    profile, seen = find_profile(f"trace:{file}")
    assert seen is not None
    assert profile.rollouts == world.episodes
    assert profile.turns.at(0.999) == max(turn.turn for turn in collection.turns) + 1
    tools = [turn.tool.seconds for turn in collection.turns]
    assert min(tools) <= profile.tool.draw("any") <= max(tools)
    result = simulated(capsys, "--profile", f"trace:{file}", "--no-sensitivity")
    assert result["match_rate"] == seen


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--profile", "nonsense"], "unknown profile 'nonsense'; there are paper-8b, paper-32b"),
        (["--match-rate", "2"], "should be less than or equal to 1"),
        (["--profile", "trace:/nonexistent"], "/nonexistent"),
    ],
)
def test_bad_input_is_refused(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *arguments]) == 2
    assert sentence in capsys.readouterr().err
