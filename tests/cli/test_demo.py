"""Demo and rollout, small, in real sandboxes."""

from __future__ import annotations

import json

import pytest

from obsspec_gym.cli import main

QUICK = ["--latency", "lognormal:0.05,0.3", "--think", "0.03", "--suite", "basics/config"]
EXPERT = ["--policy", "expert", "--world-model", "memory"]


def last_json(capsys):
    captured = capsys.readouterr()
    return json.loads(captured.out.splitlines()[-1]), captured


def test_demo(tmp_path, capsys):
    out = tmp_path / "demo"
    words = ["--episodes", "2", "--group", "2", "--envs", "1", "--out", str(out), "--json"]
    assert main(["demo", *EXPERT, *QUICK, *words]) == 0
    result, captured = last_json(capsys)
    assert result["solved"] == 1.0
    assert result["mismatches"] == 0
    assert result["turns"] == result["modes"]["sequential"]["turns"] > 0
    assert result["hit_rate"] > 0
    assert result["hidden_seconds"] > 0
    assert result["modes"]["oracle"]["hit_rate"] == 1.0
    assert result["modes"]["sequential"]["hidden_seconds"] == 0
    assert set(result) >= {"agent_latency_ratio", "share_of_d_limit", "generation_tool_ratio", "prediction_lead"}
    assert result["settings"]["latency_median"] == 0.05
    for mode in ("sequential", "speculative", "oracle"):
        trajectories = [json.loads(line) for line in (out / f"{mode}.jsonl").read_text().splitlines()]
        assert [(each["task"], each["sample"]) for each in trajectories] == [("basics/config/0", i) for i in range(2)]
        events = json.loads((out / f"{mode}.perfetto.json").read_text())["traceEvents"]
        assert any(event["name"].startswith("KEPT") for event in events) is (mode != "sequential")
    assert (out / "timeline.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((out / "result.json").read_text()) == result
    assert "Actions identical" in captured.out
    assert captured.out.count("share of the D-limit") == 1
    assert "the delay of a remote sandbox added" in captured.err


def test_rollout_without_a_world_model(tmp_path, capsys):
    words = ["--episodes", "2", "--envs", "2", "--depth", "0", "--out", str(tmp_path), "--json"]
    assert main(["rollout", "--policy", "expert", "--world-model", "none", *QUICK, *words]) == 0
    result, captured = last_json(capsys)
    lines = (tmp_path / "trajectories.jsonl").read_text().splitlines()
    assert sorted(json.loads(line)["task"] for line in lines) == [f"basics/config/{i}" for i in range(2)]
    assert result["rollouts"] == 2
    assert result["hidden_seconds"] == 0
    assert "match rate" not in captured.out
    assert json.loads((tmp_path / "measures.json").read_text()) == result


@pytest.mark.timeout(400)  # torch is imported in four processes
def test_language_models_act_and_predict_in_processes_of_their_own(tmp_path, capsys, tiny_pair):
    policy, world_model = tiny_pair
    words = ["--episodes", "2", "--group", "2", "--envs", "2", "--max-tokens", "6", "--out", str(tmp_path), "--json"]
    pair = ["--policy", str(policy), "--world-model", f"memory+{world_model}"]
    assert main(["demo", *pair, *QUICK, *words]) == 0
    result, _ = last_json(capsys)
    assert result["mismatches"] == 0
    assert result["compared_tokens"] > 0
    assert result["turns"] == 32
    first = json.loads((tmp_path / "speculative.jsonl").read_text().splitlines()[0])
    assert len(first["steps"][0]["token_ids"]) == len(first["steps"][0]["logprobs"]) > 0
    assert first["reason"] == "no submit within 16 turns"
