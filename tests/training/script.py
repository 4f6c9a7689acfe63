"""A training as a process of its own, on one rank or several: says on stdout where it is.

    python -m tests.training.script MODEL OUT --steps 6

It goes on from the last whole checkpoint in OUT, if there is one, and leaves its weights in ``OUT/weights.pt``.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from obsspec_gym.agents.world_model.memory import MemoryWorldModel
from obsspec_gym.training.checkpoints import last_checkpoint
from obsspec_gym.training.dataset import task_dataset
from obsspec_gym.training.grpo import ObsSpecGRPOTrainer
from tests.training.parts import DigitEnv, DigitSuite
from tests.training.trainers import GROUP, by_member, config


class Announcing(ObsSpecGRPOTrainer):
    """Says when it saves."""

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        announce(f"saving {self.state.global_step}")
        super()._save_checkpoint(model, trial)
        announce(f"saved {self.state.global_step}")


class Announcer(TrainerCallback):
    """Says when a step begins."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        announce(f"step {state.global_step}")


def announce(event: str) -> None:
    print(event, flush=True)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--batch", type=int, default=2 * GROUP, help="rows of a process")
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=1)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--loss", default="grpo")
    parser.add_argument("--optim", default="adamw_torch")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    options = parser.parse_args(words)

    warnings.filterwarnings("ignore", ".is_gradient_checkpointing. is deprecated", FutureWarning)
    torch.set_num_threads(1)
    envs = [DigitEnv() for _ in range(3)]
    with Announcing(
        AutoModelForCausalLM.from_pretrained(options.model, dtype=options.dtype),
        by_member,
        config(
            options.out,
            max_steps=options.steps,
            per_device_train_batch_size=options.batch,
            num_iterations=options.iterations,
            loss_type=options.loss,
            optim=options.optim,
            learning_rate=options.learning_rate,
            shuffle_dataset=True,
            save_strategy="steps",
            save_steps=1,
            save_total_limit=2,
            ddp_find_unused_parameters=False,
        ),
        task_dataset(DigitSuite(), range(options.tasks)),
        processing_class=AutoTokenizer.from_pretrained(options.model),
        suite=DigitSuite(),
        environments=envs,
        world_model=MemoryWorldModel(),
        max_turn_tokens=16,
        callbacks=[Announcer()],
    ) as trainer:
        last = last_checkpoint(options.out)
        trainer.train(resume_from_checkpoint=None if last is None else str(last))
        if trainer.is_world_process_zero():
            torch.save(trainer.model.state_dict(), options.out / "weights.pt")
    announce("done")


if __name__ == "__main__":
    main()
