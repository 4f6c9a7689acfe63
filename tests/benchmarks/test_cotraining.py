"""The benchmark of co-training at its smallest: what it says is what its curve adds up to."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")

from obsspec_gym.benchmarks import run
from obsspec_gym.envs.sandbox.bubblewrap import bubblewrap_available
from obsspec_gym.errors import InvalidArgumentError

SANDBOX = "local" if bubblewrap_available() else "bubblewrap"


def test_the_live_model_is_told_from_its_twin() -> None:
    options = {"transitions": 12, "tasks": 1, "group": 2, "envs": 2, "sandbox": SANDBOX, "suite": "basics/config"}
    told: list[str] = []
    result = run("cotraining", full=False, options={**options, "latency": "none", "steps": 2}, report=told.append)
    assert json.loads(json.dumps(result)) == result
    assert len(told) == len(result["curve"])
    assert result["transitions"] == sum(step["transitions"] for step in result["curve"]) >= 12
    assert result["curve"][0]["live_match_rate"] == result["curve"][0]["frozen_match_rate"]
    for name in ("live", "frozen"):
        matches = sum(step["transitions"] * step[f"{name}_match_rate"] for step in result["curve"])
        assert result[f"{name}_match_rate"] == pytest.approx(matches / result["transitions"])
        seconds = sum(step[f"{name}_hidden_seconds"] for step in result["curve"])
        assert result[f"{name}_hidden_seconds"] == pytest.approx(seconds)
        assert result[f"{name}_hidden_seconds"] <= result["hidable_seconds"] <= result["tool_seconds"]
    assert result["gain"] == pytest.approx(result["live_match_rate"] - result["frozen_match_rate"])
    assert result["gain_low"] <= result["gain"] <= result["gain_high"]
    assert 0 < result["p_value"] <= 1


@pytest.mark.parametrize("options", [{"transitions": 0}, {"tasks": 0}, {"steps": 0}, {"suite": "nothing"}])
def test_bad_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(InvalidArgumentError):
        run("cotraining", full=False, options=options, report=print)
