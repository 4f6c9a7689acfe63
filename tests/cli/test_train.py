"""``obsspec train`` from a configuration to a trained policy, its log and its picture."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from obsspec_gym.agents.loading import load_model
from obsspec_gym.agents.world_model.confidence import Confidence
from obsspec_gym.agents.world_model.loading import load_world_model
from obsspec_gym.cli import main

pytest.importorskip("trl")
torch = pytest.importorskip("torch")

from obsspec_gym.training.cotraining import WorldModelCoTrainingCallback  # noqa: E402 - after the check

# TRL uses a name that transformers has replaced.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")

CPU = str(Path(__file__).parents[2] / "training" / "cpu.yaml")


def tiny(folder: Path, policy: Path) -> Path:
    """Two steps of a policy that has learnt nothing."""
    options = {
        "policy": str(policy),
        "suite": "basics/config",
        "tasks": {"count": 4},
        "evaluation": {"count": 2},
        "max_turn_tokens": 4,
        "terminals": {"num_envs": 2, "max_turns": 2},
        "world_model": {"source": "memory"},
        "speculation": {"depth": 1, "adaptive": False},
        "grpo": {
            "output_dir": str(folder / "out"),
            "use_cpu": True,
            "bf16": False,
            "activation_checkpointing": False,
            "max_steps": 2,
            "per_device_train_batch_size": 2,
            "per_device_eval_batch_size": 2,
            "num_generations": 2,
            "num_generations_eval": 1,
            "max_completion_length": 256,
            "eval_strategy": "steps",
            "eval_steps": 1,
            "save_strategy": "steps",
            "save_steps": 1,
        },
    }
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(options), encoding="utf-8")
    return path


def last_line(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return result


def test_the_world_model_that_learnt_along_is_left_for_others(
    tiny_pair: tuple[Path, Path], tmp_path: Path, capsys: Any
) -> None:
    policy, before = tiny_pair[0], tmp_path / "before"
    shutil.copytree(tiny_pair[1], before)
    Confidence(0.5, (0.0, 0.0, 4.0, 0.0, 1.0, 0.0)).save(before)
    words = ["--set", f"world_model.source={before}", "--set", "cotraining.steps=1"]
    assert main(["train", str(tiny(tmp_path, policy)), *words, "--json"]) == 0
    after = Path(last_line(capsys)["world_model"])
    assert after == tmp_path / "out" / "world_model"
    old, new = (load_model(folder).state_dict() for folder in (before, after))
    assert old.keys() == new.keys()
    assert any(not torch.equal(old[name], new[name]) for name in old)
    assert Confidence.load(after) == Confidence.load(before)
    with closing(load_world_model(after)):
        pass
    assert not (tmp_path / "out" / "world_model.new").exists()


def test_a_world_model_that_cannot_be_written_costs_no_result(
    tiny_pair: tuple[Path, Path], tmp_path: Path, capsys: Any, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(WorldModelCoTrainingCallback, "save_model", full)
    words = ["--set", f"world_model.source={tiny_pair[1]}", "--set", "cotraining.steps=1", "--set", "grpo.max_steps=1"]
    assert main(["train", str(tiny(tmp_path, tiny_pair[0])), *words, "--json"]) == 0
    result = last_line(capsys)
    assert result["steps"] == 1
    assert "world_model" not in result
    assert "could not be written" in caplog.text
    assert "OSError: no space left" in caplog.text


def test_a_training_from_start_to_picture_and_on(tiny_pair: tuple[Path, Path], tmp_path: Path, capsys: Any) -> None:
    config, out = tiny(tmp_path, tiny_pair[0]), tmp_path / "out"
    assert main(["train", str(config), "--set", "grpo.max_steps=1", "--json"]) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out.splitlines()[-1])
    assert "step 1 of 1: reward 0.000" in captured.err
    assert result["steps"] == 1
    assert (out / "training.png").stat().st_size > 10_000
    assert (out / "policy" / "model.safetensors").is_file()
    logged = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert {"rollout/hidden_seconds", "step_time", "seconds"} <= logged[0].keys()
    assert any("eval_reward" in entry for entry in logged)

    assert main(["train", str(config)]) == 2
    assert "holds a training already: --resume goes on with it" in capsys.readouterr().err
    assert main(["train", str(config), "--resume", "--json"]) == 0
    assert last_line(capsys)["steps"] == 2
    steps = [json.loads(line)["step"] for line in (out / "log.jsonl").read_text().splitlines()]
    assert sorted(set(steps)) == [1, 2]
    assert steps == sorted(steps)


def test_a_dry_run_shows_everything_and_starts_nothing(capsys: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", CPU, "--dry-run", "--set", "grpo.learning_rate=2e-4", "--json"]) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out.splitlines()[-1])
    assert result["not_here"] is None
    assert result["config"]["grpo"]["learning_rate"] == 2e-4
    assert result["config"]["suite"] == "terminal/archive+permissions+count:templates"
    shown = yaml.safe_load("\n".join(captured.out.splitlines()[:-1]))
    assert shown == result["config"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["/nonsense.yaml"], "/nonsense.yaml cannot be read: No such file or directory"),
        ([CPU, "--set", "sutie=x"], "there is no option sutie; did you mean suite?"),
        ([CPU, "--set", "grpo.max_step=x"], "there is no option grpo.max_step; did you mean grpo.max_steps?"),
        ([CPU, "--set", "policy=/nonsense"], "a directory with a config.json, got '/nonsense'"),
        ([CPU, "--resume"], "there is no checkpoint in runs/cpu to go on from"),
    ],
)
def test_bad_input_is_one_sentence(
    words: list[str], sentence: str, capsys: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", *words]) == 2
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert captured.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
