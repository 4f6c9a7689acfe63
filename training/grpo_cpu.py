"""GRPO from the shipped policy on two CPU cores: one file, top to bottom.

    OMP_NUM_THREADS=1 python training/grpo_cpu.py --steps 20

Tasks come from the training part of the suite (indices from 10,000 on) and are played in real sandboxes; the world
model remembers what commands printed, and the shipped language model predicts what it has not seen.
"""

from __future__ import annotations

import argparse

from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig

from obsspec_gym.agents.loading import model_directory
from obsspec_gym.agents.world_model.loading import load_world_model
from obsspec_gym.speculation.selector import FixedSelector, Off
from obsspec_gym.training import ObsSpecGRPOTrainer, task_dataset

GROUP = 8
TASKS_PER_STEP = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", default="shipped", help="'shipped', or a directory with a model")
    parser.add_argument("--suite", default="basics", help="where tasks come from")
    parser.add_argument("--steps", type=int, default=20, help="optimiser steps")
    parser.add_argument("--envs", type=int, default=8, help="sandboxes that run at once")
    parser.add_argument("--latency", default="none", help="added delay of a remote sandbox: 'remote' or 'none'")
    parser.add_argument("--sequential", action="store_true", help="without speculation; the training is the same")
    parser.add_argument("--out", default="runs/grpo_cpu", help="where checkpoints and logs go")
    options = parser.parse_args()

    policy = model_directory(options.policy, "policy")
    config = GRPOConfig(
        output_dir=options.out,
        use_cpu=True,
        bf16=False,
        activation_checkpointing=False,
        max_steps=options.steps,
        per_device_train_batch_size=GROUP,
        gradient_accumulation_steps=TASKS_PER_STEP,
        num_generations=GROUP,
        max_completion_length=1024,
        learning_rate=1e-4,
        loss_type="dr_grpo",
        scale_rewards="none",
        logging_steps=1,
        save_strategy="no",
        report_to=[],
    )
    world_model = load_world_model()
    first = 10_000
    with ObsSpecGRPOTrainer(
        AutoModelForCausalLM.from_pretrained(policy, dtype="float32"),
        args=config,
        train_dataset=task_dataset(options.suite, range(first, first + TASKS_PER_STEP * options.steps)),
        processing_class=AutoTokenizer.from_pretrained(policy),
        suite=options.suite,
        num_envs=options.envs,
        terminal_options={"latency": options.latency},
        world_model=world_model,
        speculation=Off() if options.sequential else FixedSelector(1, 1),
        max_turn_tokens=128,
    ) as trainer:
        trainer.train()
        trainer.save_model(options.out)
    world_model.close()


if __name__ == "__main__":
    main()
