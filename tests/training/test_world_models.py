"""A training goes on without a world model that cannot be loaded, and says so."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

from obsspec_gym.agents.engine.transformers import TransformersEngine
from obsspec_gym.agents.world_model.lm import LMWorldModel
from obsspec_gym.errors import ClosedError
from obsspec_gym.training.world_models import load_or_do_without
from obsspec_gym.types import Sampling

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")

NAME = "model.layers.1.mlp.down_proj.weight"


def nowhere(folder: Path) -> None:
    shutil.rmtree(folder)


def without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def damaged(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\x00" * 100)


def incomplete(folder: Path) -> None:
    change(folder, lambda weights: weights.pop(NAME))


def of_another_shape(folder: Path) -> None:
    change(folder, lambda weights: weights.update({NAME: torch.zeros(32, 65)}))


def change(folder: Path, how: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    how(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("damage", [nowhere, without_weights, damaged, incomplete, of_another_shape])
def test_what_cannot_be_loaded_is_done_without(
    model_directory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None]
) -> None:
    folder = tmp_path / "world_model"
    shutil.copytree(model_directory, folder)
    world_model = load_or_do_without(folder, {"driver": "inline"}, strict=True)
    assert isinstance(world_model, LMWorldModel)
    world_model.close()
    damage(folder)
    assert load_or_do_without(folder, {"driver": "inline"}, strict=False) is None
    assert f"training goes on without speculation: world model {str(folder)!r} cannot be loaded (" in caplog.text
    with pytest.raises((OSError, ValueError, RuntimeError, SafetensorError)):
        load_or_do_without(folder, {"driver": "inline"}, strict=True)


def test_no_memory_for_it_is_no_end(
    monkeypatch: pytest.MonkeyPatch, model_directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("out of memory: tried to allocate 20 GiB")

    monkeypatch.setattr(TransformersEngine, "__init__", full)
    assert load_or_do_without(model_directory, {}, strict=False) is None
    assert "OutOfMemoryError: out of memory" in caplog.text
    with pytest.raises(torch.OutOfMemoryError):
        load_or_do_without(model_directory, {}, strict=True)


def test_an_option_that_there_is_not_is_a_mistake() -> None:
    with pytest.raises(TypeError, match="deep"):
        load_or_do_without("memory", {"deep": 3}, strict=False)


def test_a_trainer_loads_it_by_name_and_closes_it(make: Any, model_directory: Path) -> None:
    trainer = make(world_model=model_directory, world_model_options={"driver": "inline"})
    trainer.train()
    world_model = trainer.world_model
    assert isinstance(world_model, LMWorldModel)
    trainer.close()
    with pytest.raises(ClosedError):
        world_model._engine.submit([1], Sampling(), 0)


def test_a_trainer_goes_on_without_it_unless_it_is_strict(make: Any, tmp_path: Path, caplog: Any) -> None:
    trainer = make(world_model=tmp_path / "nowhere")
    assert trainer.world_model is None
    trainer.train()
    assert "rollout/match_rate" not in trainer.state.log_history[0]
    assert "training goes on without speculation" in caplog.text
    with pytest.raises(ValueError, match="nowhere"):
        make(world_model=tmp_path / "nowhere", strict=True)
