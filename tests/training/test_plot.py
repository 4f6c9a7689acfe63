"""The picture of a training, from its log."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("transformers")

from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.training.log import LOG, LogFile, read_log, series
from obsspec_gym.training.plot import phases, plot_training

PNG = b"\x89PNG\r\n"


def entry(step: int, **measures: Any) -> dict[str, Any]:
    return {"step": step, "seconds": 10.0 * step, "reward": 0.1 * step, "step_time": 6.0} | measures


RECORDED = [
    entry(1, **{"rollout/batch_latency": 4.0, "rollout/match_rate": 0.4, "rollout/hidden_seconds": 1.0}),
    entry(
        2,
        **{
            "rollout/batch_latency": 4.0,
            "world_model/seconds": 1.0,
            "world_model/match_rate": 0.5,
            "world_model/frozen_match_rate": 0.4,
            "world_model/hidden_seconds": 3.0,
            "world_model/frozen_hidden_seconds": 2.0,
        },
    ),
    {"step": 2, "seconds": 25.0, "eval_reward": 0.7},
    entry(4, seconds=60.0),
    {"step": 4, "seconds": 61.0, "train_runtime": 61.0},
]


def test_a_recorded_log_is_drawn(tmp_path: Path) -> None:
    picture = plot_training(RECORDED, tmp_path / "new" / "training.png", title="a $ training")
    assert picture.read_bytes().startswith(PNG)
    plain = plot_training([entry(1)], tmp_path / "plain.png")  # without speculation, a single step
    assert plain.read_bytes().startswith(PNG)
    assert plain.stat().st_size < picture.stat().st_size


def test_seconds_of_a_step_add_up() -> None:
    steps, seconds = phases(RECORDED)
    assert steps == [1, 2, 4]
    assert seconds == {
        "rollouts": [4.0, 4.0, 0.0],
        "policy: loss and gradients": [2.0, 2.0, 6.0],
        "world model": [0.0, 1.0, 0.0],
        "rest": [4.0, 3.0, 14.0],  # the last entry is of two steps in 40 s
    }


def test_nothing_to_draw_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="there is nothing to draw"):
        plot_training([{"step": 1, "eval_reward": 1.0}], tmp_path / "no.png")
    with pytest.raises(InvalidArgumentError, match=r"log\.jsonl is no log of a training"):
        read_log(tmp_path / LOG)


def test_series_are_of_where_something_was_logged() -> None:
    assert series([*RECORDED, {"step": 9, "reward": None}], "reward") == ([1, 2, 4], pytest.approx([0.1, 0.2, 0.4]))


def state(step: int, history: list[dict[str, Any]]) -> Any:
    return SimpleNamespace(is_world_process_zero=True, global_step=step, log_history=history)


def test_a_continued_training_goes_on_in_the_same_log(tmp_path: Path) -> None:
    first = LogFile(tmp_path / LOG)
    first.on_train_begin(None, state(0, []), None)
    for step in (1, 2, 3):
        first.on_log(None, state(step, [{"step": step, "reward": step}]), None)
    with (tmp_path / LOG).open("a") as file:
        file.write('{"step": 4, "rew')  # killed while it wrote
    second = LogFile(tmp_path / LOG)
    second.on_train_begin(None, state(2, []), None)
    second.on_log(None, state(3, [{"step": 3, "reward": 30}]), None)
    entries = read_log(tmp_path)
    assert [(each["step"], each["reward"]) for each in entries] == [(1, 1), (2, 2), (3, 30)]
    assert [each["seconds"] for each in entries] == sorted(each["seconds"] for each in entries)
    third = LogFile(tmp_path / LOG)
    third.on_train_begin(None, state(0, []), None)
    assert (tmp_path / LOG).read_text() == ""


def test_other_processes_write_nothing(tmp_path: Path) -> None:
    log = LogFile(tmp_path / LOG)
    other = state(0, [{"step": 1}])
    other.is_world_process_zero = False
    log.on_train_begin(None, other, None)
    log.on_log(None, other, None)
    assert not (tmp_path / LOG).exists()
    assert json.dumps(RECORDED)
