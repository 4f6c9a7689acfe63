"""The benchmark of our own CPU: what is subtracted from what, and bad options."""

from __future__ import annotations

import json

import pytest

from obsspec_gym.benchmarks import run
from obsspec_gym.errors import InvalidArgumentError


def test_our_own_is_ours_minus_the_skeleton() -> None:
    told: list[str] = []
    options = {"envs": "1,16", "turns": "3", "steps": "12", "repeats": "1"}
    result = run("wrapper", full=False, options=options, report=told.append)
    assert len(told) == 2
    assert json.loads(json.dumps(result)) == result
    rows = result["envs"]
    for row in rows.values():
        assert row["own"] == pytest.approx(row["ours"] - row["skeleton"])
        assert row["ours"] > row["skeleton"] > 0
        assert row["collecting"] < row["own"]
    assert result["microseconds_per_step"] == max(row["own"] for row in rows.values())
    without = [row["own"] - row["collecting"] for row in rows.values()]
    assert result["growth_without_collecting"] == pytest.approx(without[1] / without[0])
    assert result["growth"] == pytest.approx(rows["16"]["own"] / rows["1"]["own"])


@pytest.mark.parametrize(
    "options", [{"envs": "many"}, {"envs": "4,1"}, {"envs": "0"}, {"envs": ""}, {"turns": 1}, {"repeats": 0}]
)
def test_bad_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(InvalidArgumentError):
        run("wrapper", full=False, options=options, report=print)
