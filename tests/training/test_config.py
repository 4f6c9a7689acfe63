"""A configuration is read as it was written, and what is wrong with it is one sentence, before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.training.config import TrainConfig, parse_config, read_config

NAMES = sorted(TrainConfig.model_fields)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_what_is_left_out_has_its_default(tmp_path: Path) -> None:
    assert read_config(written(tmp_path, "")) == TrainConfig() == parse_config({})
    assert TrainConfig().tasks.indices == range(10_000, 10_512)
    assert read_config(written(tmp_path, "evaluation: {}")).evaluation.indices == range(32)  # type: ignore[union-attr]


def test_settings_replace_what_is_written(tmp_path: Path) -> None:
    path = written(tmp_path, "tasks: {count: 3}\ngrpo: {max_steps: 1}\nevaluation: {count: 2}\n")
    settings = [
        "tasks.first=20000", "grpo.learning_rate=1e-4", "evaluation=null", "terminals.sandbox_options.disk_mib=64"
    ]  # fmt: skip
    config = read_config(path, settings)
    assert config.tasks.indices == range(20_000, 20_003)
    assert config.grpo == {
        "max_steps": 1,
        "learning_rate": "1e-4",
    }  # text in YAML, until TRL's fields say
    assert config.evaluation is None
    assert config.terminals.sandbox_options == {"disk_mib": 64}


@given(
    first=st.integers(0, 10**9),
    count=st.integers(1, 10**6),
    depth=st.integers(0, 9),
    rate=st.floats(0, 1),
    name=st.text(min_size=1),
)
def test_a_configuration_survives_being_written_and_read(
    first: int, count: int, depth: int, rate: float, name: str
) -> None:
    options = {
        "policy": name,
        "tasks": {"first": first, "count": count},
        "speculation": {"depth": depth},
        "grpo": {"learning_rate": rate, "run_name": name},
    }
    config = parse_config(options)
    assert config.tasks.indices == range(first, first + count)
    assert parse_config(yaml.safe_load(yaml.safe_dump(config.model_dump(mode="json")))) == config


@given(name=st.text(min_size=1).filter(lambda name: name not in NAMES), value=st.none() | st.integers() | st.text())
def test_any_other_key_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidArgumentError) as refusal:
        parse_config({name: value})
    assert str(refusal.value).startswith(f"there is no option {name}; ")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("sutie: basics", "there is no option sutie; did you mean suite?"),
        ("xyzzyx: 1", "there is no option xyzzyx; there are cotraining, dtype, "),
        ("terminals: {num_env: 4}", "there is no option terminals.num_env; did you mean terminals.num_envs?"),
        ("evaluation: {cuont: 4}", "there is no option evaluation.cuont; did you mean evaluation.count?"),
        ("terminals: {num_envs: 0}", "terminals.num_envs: input should be greater than or equal to 1, got 0"),
        ("terminals: {num_envs: many}", "terminals.num_envs: input should be a valid integer"),
        ("terminals: 8", "terminals: input should be a valid dictionary or instance of Terminals, got 8"),
        ("work: 0", "work: input should be greater than 0, got 0"),
        ("dtype: float8", "dtype: input should be 'auto', 'float32', 'float64' or 'bfloat16', got 'float8'"),
        ("[1, 2]", "must hold options by name, got list"),
        ("a: [1", "is not YAML: "),
    ],
)
def test_what_is_wrong_is_one_sentence(text: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError) as refusal:
        read_config(written(tmp_path, text))
    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("tasks", "--set takes key=value, got 'tasks'"),
        ("=1", "--set takes key=value, got '=1'"),
        ("suite.name=x", "--set suite.name=x: suite is a value and has no options of its own"),
        ("tasks.count=[1", "--set tasks.count: the value is not YAML, got '[1'"),
        ("tasks.cuont=1", "there is no option tasks.cuont; did you mean tasks.count?"),
    ],
)
def test_a_setting_that_cannot_be_read_is_one_sentence(setting: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError) as refusal:
        read_config(written(tmp_path, "suite: basics"), [setting])
    assert str(refusal.value) == sentence


def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"none\.yaml cannot be read: No such file or directory"):
        read_config(tmp_path / "none.yaml")
