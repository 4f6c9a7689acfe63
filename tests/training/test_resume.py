"""A training that was interrupted goes on as if nothing had been."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
from transformers import TrainerCallback

from obsspec_gym.agents.world_model.memory import MemoryWorldModel
from obsspec_gym.errors import InvalidArgumentError
from tests.training.parts import DigitSuite

pytest.importorskip("trl")

from obsspec_gym.training.checkpoints import last_checkpoint
from obsspec_gym.training.dataset import task_dataset
from tests.training import script
from tests.training.killing import kill, same_weights
from tests.training.trainers import TASKS, Workshop, greedy, moved, reference, weights

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")

KILLS = int(os.environ.get("OBSSPEC_KILLS", "3"))


@pytest.mark.timeout(240 * (KILLS + 2))
def test_killed_at_random_moments_it_ends_with_the_weights_of_the_unbroken_run(
    model_directory: Path, tmp_path: Path
) -> None:
    """Batches last for two steps and epochs for four, so kills come in the middle of both."""
    unbroken, killed = tmp_path / "unbroken", tmp_path / "killed"
    options = ["--steps", str(2 * KILLS + 2), "--iterations", "2"]
    script.main([str(model_directory), str(unbroken), *options])
    moments = kill([model_directory, killed, *options], KILLS, Random(0))
    script.main([str(model_directory), str(killed), *options])
    assert len(moments) == KILLS
    assert any(moment.startswith("saving") for moment in moments)
    assert same_weights(unbroken, killed)
    assert not (killed / ".unfinished").exists()
    assert len(list(killed.glob("checkpoint-*"))) == 2


class Counter(TrainerCallback):
    """A callback with a state."""

    def __init__(self) -> None:
        self.steps = 0

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.steps += 1

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.steps = state["steps"]


SAVING = {"save_strategy": "steps", "save_steps": 1, "max_steps": 2}


def test_what_learns_beside_the_policy_goes_on_too(make: Workshop, pretrained: Any, tmp_path: Path) -> None:
    memory, counter = MemoryWorldModel(), Counter()
    make(world_model=memory, callbacks=[counter], **SAVING).train()
    again, counted = MemoryWorldModel(), Counter()
    trainer = make(world_model=again, callbacks=[counted], **SAVING | {"max_steps": 3})
    trainer.train(resume_from_checkpoint=True)
    assert (counter.steps, counted.steps) == (2, 3)
    assert trainer.batches == 1
    memory.load_state_dict(again.state_dict())
    state = again.state_dict()
    assert state["clock"] > 0
    assert state["clock"] == memory.state_dict()["clock"]


def test_a_batch_that_serves_several_steps_is_gone_on_with(make: Workshop, pretrained: Any, tmp_path: Path) -> None:
    models = [copy.deepcopy(pretrained) for _ in range(2)]
    whole, again = (make(model=model, **SAVING | {"num_iterations": 2, "max_steps": 4}) for model in models)
    whole.train()
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert again.batches == 0
    assert moved(weights(whole), weights(again)) == []


def test_only_whole_checkpoints_are_gone_on_from(make: Workshop, tmp_path: Path) -> None:
    make(**SAVING).train()
    (tmp_path / "checkpoint-2" / "optimizer.pt").write_bytes(b"")
    assert last_checkpoint(tmp_path) == tmp_path / "checkpoint-1"
    trainer = make(**SAVING)
    with pytest.raises(InvalidArgumentError, match="checkpoint-2 is not a whole checkpoint"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    trainer.train(resume_from_checkpoint=True)
    assert trainer.batches == 1  # step 2 again, and its checkpoint in the place of the damaged one
    assert last_checkpoint(tmp_path) == tmp_path / "checkpoint-2"


def test_without_a_checkpoint_there_is_nothing_to_go_on_from(make: Workshop) -> None:
    with pytest.raises(InvalidArgumentError, match="there is no whole checkpoint"):
        make().train(resume_from_checkpoint=True)


def test_the_best_checkpoint_is_known_by_its_place_and_given_to_the_engine(make: Workshop, tmp_path: Path) -> None:
    trainer = make(
        **SAVING,
        eval_dataset=task_dataset(DigitSuite(), TASKS),
        eval_strategy="steps",
        eval_steps=1,
        load_best_model_at_end=True,
        metric_for_best_model="eval_loss",
    )
    trainer.train()
    best = Path(trainer.state.best_model_checkpoint or "")
    assert best in (tmp_path / "checkpoint-1", tmp_path / "checkpoint-2")
    prompt = list(trainer.trajectories[0].prompt_ids)
    assert greedy(trainer, prompt) == reference(trainer, prompt)
