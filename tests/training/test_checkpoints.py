"""A checkpoint is whole or not there, whatever happens while it is written."""

from __future__ import annotations

import asyncio
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from obsspec_gym.agents.history import History
from obsspec_gym.agents.world_model.cascade import CascadeWorldModel
from obsspec_gym.agents.world_model.memory import MemoryWorldModel
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.training import checkpoints
from obsspec_gym.types import Completion, EpisodeId, FinishReason, MalformedCall, Outcome, Transition


def write(folder: Path, step: int, text: str = "weights") -> Path:
    unfinished = checkpoints.begin(folder, f"checkpoint-{step}")
    (unfinished / "model").write_text(text)
    (unfinished / "adapter").mkdir()
    (unfinished / "adapter" / "model").write_text(text)
    return checkpoints.publish(unfinished)


def test_the_newest_whole_one_is_found(tmp_path: Path) -> None:
    assert checkpoints.last_checkpoint(tmp_path) is None
    for step in (9, 10):
        assert write(tmp_path, step) == tmp_path / f"checkpoint-{step}"
    (tmp_path / "checkpoint-11").mkdir()
    (tmp_path / "checkpoint-x").mkdir()
    assert checkpoints.last_checkpoint(tmp_path) == tmp_path / "checkpoint-10"


@pytest.mark.parametrize("damage", ["cut", "gone", "no manifest", "half a manifest"])
def test_one_that_is_not_whole_is_passed_over(tmp_path: Path, damage: str) -> None:
    first, second = write(tmp_path, 1), write(tmp_path, 2)
    if damage == "cut":
        (second / "adapter" / "model").write_text("wei")
    elif damage == "gone":
        (second / "adapter" / "model").unlink()
    elif damage == "no manifest":
        (second / "manifest.json").unlink()
    else:
        (second / "manifest.json").write_text('{"model":')
    assert not checkpoints.is_whole(second)
    assert checkpoints.last_checkpoint(tmp_path) == first


def test_an_interruption_at_any_moment_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a save that replaces one of the same name, too."""
    calls = 0
    fatal = 10**9

    def interrupting(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > fatal:
                raise KeyboardInterrupt
            return function(*args, **kwargs)

        return call

    write(tmp_path, 1, "old")
    write(tmp_path, 2, "old")
    for name in ("fsync", "open", "unlink", "rmdir", "mkdir", "rename"):
        monkeypatch.setattr(os, name, interrupting(getattr(os, name)))
    monkeypatch.setattr(Path, "rename", interrupting(Path.rename))
    monkeypatch.setattr(Path, "write_text", interrupting(Path.write_text))
    write(tmp_path, 2, "new")
    needed = calls
    assert needed > 10
    for moment in range(needed):
        calls, fatal = 0, moment
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path, 2, "newer")
        calls = -(10**9)
        found = checkpoints.last_checkpoint(tmp_path)
        assert found is not None
        texts = {path.read_text() for path in (found / "model", found / "adapter" / "model")}
        assert len(texts) == 1
        write(tmp_path, 2, "new")
        assert (checkpoints.last_checkpoint(tmp_path) / "model").read_text() == "new"  # type: ignore[operator]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-1", "checkpoint-2"]


def test_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    for step in range(1, 6):
        write(tmp_path, step)
    checkpoints.keep_newest(tmp_path, None, None)
    assert len(list(tmp_path.iterdir())) == 5
    checkpoints.keep_newest(tmp_path, 2, str(tmp_path / "checkpoint-2"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-2", "checkpoint-5"]
    checkpoints.keep_newest(tmp_path, 1, str(tmp_path / "checkpoint-2"))
    assert len(list(tmp_path.iterdir())) == 2


def transitions() -> list[Transition]:
    history = History.start(EpisodeId("task", 3), "Which digit?", (1, 2))
    first = history.act("cat n", (3,))
    second = first.observe("7\n[exit 0] ~", (4, 5)).act(MalformedCall("sub mit"), (6,))
    return [Transition(first, Outcome("7\n[exit 0] ~"), 0.25), Transition(second, Outcome("[not run]", True), 0.5)]


def test_values_come_back_as_they_were(tmp_path: Path) -> None:
    seen = transitions()
    state = {
        "transitions": seen,
        "completion": Completion((1, 2), (-0.5, -1.0), FinishReason.LENGTH),
        "weights": {"w": torch.arange(3.0, dtype=torch.float64)},
        "text": "\udcff, 🙂",
        "bytes": b"\x00\xff",
        "number": 2**80,
    }
    checkpoints.save_state(tmp_path / "state.pt", state)
    loaded = checkpoints.load_state(tmp_path / "state.pt")
    assert torch.equal(loaded.pop("weights")["w"], state.pop("weights")["w"])  # type: ignore[attr-defined]
    assert loaded == state
    assert loaded["transitions"][1].history.token_ids == seen[1].history.token_ids
    assert isinstance(loaded["transitions"][1].action, MalformedCall)


def test_nothing_else_is_taken_in(tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "harm"),)

    with (tmp_path / "state.pt").open("wb") as file:
        torch.save({"harm": Harm()}, file)
    with pytest.raises(InvalidArgumentError, match=r"state\.pt cannot be read"):
        checkpoints.load_state(tmp_path / "state.pt")
    assert not (tmp_path / "harm").exists()
    (tmp_path / "state.pt").write_bytes(pickle.dumps({}))
    with pytest.raises(InvalidArgumentError, match=r"state\.pt cannot be read"):
        checkpoints.load_state(tmp_path / "state.pt")


def test_a_memory_predicts_what_it_did_before(tmp_path: Path) -> None:
    world_model = CascadeWorldModel([MemoryWorldModel()])
    for transition in transitions():
        world_model.observe(transition)
    learners = checkpoints.named([object(), world_model, None, MemoryWorldModel(), MemoryWorldModel()])
    assert list(learners) == ["CascadeWorldModel", "MemoryWorldModel", "MemoryWorldModel#1"]
    checkpoints.save_state(tmp_path / "state.pt", checkpoints.states_of(learners))
    again = CascadeWorldModel([MemoryWorldModel()])
    checkpoints.restore(checkpoints.named([again]), checkpoints.load_state(tmp_path / "state.pt"))
    seen = transitions()[0].history
    assert seen.parent is not None
    before, after = (asyncio.run(model.predict(seen.parent, "cat n", 1)) for model in (world_model, again))
    assert before == after != []


def test_what_has_no_counterpart_is_said(caplog: pytest.LogCaptureFixture) -> None:
    states = checkpoints.states_of({"gone": MemoryWorldModel()})
    checkpoints.restore({"new": MemoryWorldModel()}, states)
    assert "holds no state of new, which starts anew" in caplog.text
    assert "holds the state of gone, which is not part of this run" in caplog.text
