"""The comparison of engines at a small size."""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import Any

import pytest

from obsspec_gym.benchmarks import run
from obsspec_gym.errors import InvalidArgumentError

pytest.importorskip("transformers")


def small(**options: Any) -> dict[str, Any]:
    return run("engines", full=False, options=options, report=lambda line: None)


def test_engines_are_compared_on_one_model() -> None:
    result = small(requests="1,2", prompt=8, tokens=4, repeats=1, episodes=2)
    assert json.loads(json.dumps(result)) == result
    measured = result["transformers"]
    assert measured["mismatches"] == 0
    assert measured["logprob_difference"] <= 1e-5
    assert measured["turns"] >= 8
    assert set(measured["tokens_per_second"]) == set(measured["first_token_seconds"]) == {"1", "2"}
    assert all(value > 0 for value in measured["tokens_per_second"].values())
    if find_spec("vllm") is None:
        assert "obsspec_gym[vllm]" in result["vllm"]["missing"]
        assert result["engines"] == ["transformers"]


@pytest.mark.parametrize("options", [{"requests": "a"}, {"requests": "0"}, {"tokens": 0}, {"episodes": "x"}])
def test_bad_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        small(**options)
