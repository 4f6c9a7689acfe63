"""The benchmarks at a small size: what they claim is what they measure, and bad options are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from obsspec_gym.benchmarks import names, run
from obsspec_gym.errors import InvalidArgumentError


def small(name: str, **options: Any) -> dict[str, Any]:
    told: list[str] = []
    result = run(name, full=False, options=options, report=told.append)
    assert told
    assert json.loads(json.dumps(result)) == result
    return result


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_real_engine_is_lossless(dtype: str) -> None:
    """I2a with the real engine, over drawn depths, breadths and world models."""
    result = small("lossless", turns=100, seed=3, dtype=dtype)
    assert result["mismatches"] == 0, result["first_mismatch"]
    assert result["turns"] >= 100
    assert result["left_in_engine"] == 0
    for kind in ("hit", "miss", "cancel", "mid_generation"):
        assert result[f"{kind}_share"] > 0.02


def test_overhead_measures_both_kinds_of_vector_environments() -> None:
    result = small("overhead", envs="2", steps="20", repeats="2")
    for kind in ("sync", "threads"):
        assert result[kind]["added_milliseconds_per_env"]["repeats"] == 2
    assert result["import_brings_torch"] is False


def test_sandboxes_are_measured_beside_the_plain_way() -> None:
    result = small("sandbox", repeats=2, commands=3, many=2, kinds="bubblewrap,local")
    for kind in ("bubblewrap", "local"):
        measured = result[kind]
        if "reason" in measured:
            assert measured["round_trip_ms"] is measured["start_ms"] is measured["fork_ms"] is None
            continue
        assert {name: spread["repeats"] for name, spread in measured["spread"].items()} == {
            "start_ms": 2,
            "fork_ms": 2,
            "round_trip_ms": 6,
        }
        for name, spread in measured["spread"].items():
            assert spread["low"] <= measured[name] == spread["median"] <= spread["high"]
    assert result["subprocess_ms"]["repeats"] == 10
    assert result["docker_exec_ms"] is None


def test_a_sandbox_that_cannot_be_had_is_told_with_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    result = small("sandbox", repeats=1, commands=1, many=0, kinds="docker")
    assert result["docker"]["round_trip_ms"] is None
    assert "docker" in result["docker"]["reason"].lower()
    assert result["docker_exec_ms"] is None


def test_bad_options_are_one_sentence() -> None:
    with pytest.raises(
        InvalidArgumentError,
        match=f"benchmark must be one of {', '.join(names())}, got 'speed'",
    ):
        run("speed", full=False, options={}, report=print)
    with pytest.raises(InvalidArgumentError, match="options of benchmark 'lossless' are dtype, seed, turns, got size"):
        run("lossless", full=False, options={"size": 3}, report=print)
    with pytest.raises(InvalidArgumentError, match="option turns must be of type int, got 'many'"):
        run("lossless", full=False, options={"turns": "many"}, report=print)
    with pytest.raises(InvalidArgumentError, match="turns must be >= 1, got 0"):
        run("lossless", full=False, options={"turns": 0}, report=print)
    assert set(names()) >= {"lossless", "overlap", "wrapper", "sandbox", "determinism", "selectors", "paper"}


def test_adaptive_and_fixed_selectors_are_compared_over_a_grid() -> None:
    result = small("selectors", cells=3, turns=2)
    assert result["count"] == len(result["cells"]) == 3
    assert result["worst_ratio"] == max(cell["adaptive_ratio"] for cell in result["cells"])
    for cell in result["cells"]:
        assert cell["best_ratio"] == min(cell["ratios"].values())


def test_the_papers_numbers_stand_beside_ours() -> None:
    result = small("paper", rollouts=2)
    for profile in ("paper_8b", "paper_32b"):
        beside = result[profile]["paper"]
        assert set(beside) == {
            "saving", "discarded_tokens_depth_1", "discarded_tokens_growth", "latency_breadth_8"
        }  # fmt: skip
        assert all(each["hit"] or each["why"] for each in beside.values())
        assert set(result[profile]["sensitivity"]) == {"output", "turns", "tool", "first_prompt", "observation"}
