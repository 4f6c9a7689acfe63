"""One of two processes that co-train a world model; run by torchrun. Writes what it came to beside the model."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import AutoModelForCausalLM, AutoTokenizer

from obsspec_gym.training.cotraining import WorldModelCoTrainingCallback
from obsspec_gym.training.cotraining_settings import CoTraining
from tests.training.foresight import Shelf, digit_episode, reader

SETTINGS = CoTraining(steps=2, batch_tokens=200, learning_rate=1e-2)
EPISODES = [([0, 1], [2, 3]), ([4], []), ([5], [6, 7])]
"""For each step, the episodes that each of the processes plays."""


class Warnings(logging.Handler):
    """Counts."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1


def main(folder: Path) -> None:
    import torch

    state = PartialState(cpu=True)
    warnings = Warnings()
    logging.getLogger("obsspec_gym").addHandler(warnings)
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    world_model = reader(tokenizer)
    callback = WorldModelCoTrainingCallback(world_model, model, SETTINGS)
    learner = callback._learner
    assert learner is not None
    assert isinstance(world_model.engine, Shelf)
    for reported in EPISODES:
        callback.report([each for number in reported[state.process_index] for each in digit_episode(number)])
        callback.on_step_end(None, None, None)
    result: dict[str, Any] = {"processes": state.num_processes, "digest": learner.digest()}

    with torch.no_grad():
        for model in (learner.model, learner.student):
            next(model.parameters()).add_(1e-7 * state.process_index)
    result["drifted"] = learner.digest()
    callback.on_step_end(None, None, None)
    result["repaired"] = learner.digest()

    if state.process_index == 1:  # what fails on one of them ends it on both
        with torch.no_grad():
            next(learner.student.parameters()).fill_(torch.nan)
    version = world_model.engine.weights_version
    for _ in range(2):
        callback.on_step_end(None, None, None)
    result["told"] = warnings.count
    result["handed"] = {name: float(tensor.double().sum()) for name, tensor in world_model.engine.weights.items()}
    result["went_on"] = world_model.engine.weights_version == version
    (folder / f"{state.process_index}.json").write_text(json.dumps(result))
    state.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
