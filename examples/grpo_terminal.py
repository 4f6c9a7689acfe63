"""GRPO on a terminal: TRL's trainer, with rollouts in real sandboxes while the policy thinks ahead.

    OMP_NUM_THREADS=1 python examples/grpo_terminal.py --steps 20

On two CPU cores. `obsspec train training/cpu.yaml` does the same, with evaluation, checkpoints and a plot.
"""

import argparse

from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig

from obsspec_gym import load_world_model
from obsspec_gym.agents.loading import model_directory
from obsspec_gym.training import ObsSpecGRPOTrainer, task_dataset

parser = argparse.ArgumentParser(description="GRPO on a terminal")
parser.add_argument("--steps", type=int, default=20, help="optimiser steps")
parser.add_argument("--tasks", type=int, default=4, help="tasks a step")
parser.add_argument("--group", type=int, default=8, help="episodes a task")
parser.add_argument("--latency", default="remote", help="added delay of a remote sandbox, or none")
parser.add_argument("--out", default="runs/grpo_terminal", help="where the trained policy goes")
options = parser.parse_args()

config = GRPOConfig(
    output_dir=options.out,
    use_cpu=True,
    bf16=False,
    activation_checkpointing=False,
    max_steps=options.steps,
    per_device_train_batch_size=options.group,
    gradient_accumulation_steps=options.tasks,
    num_generations=options.group,
    max_completion_length=1024,  # of an episode, observations included
    learning_rate=5e-4,
    warmup_steps=6,
    loss_type="grpo",
    logging_steps=1,
    save_strategy="no",
    report_to="none",
)
policy = model_directory("shipped", "policy")
world_model = load_world_model()  # remembers what commands printed; a language model predicts the rest
suite = "terminal/archive+permissions+count:templates"  # families that it solves now and then

with ObsSpecGRPOTrainer(
    AutoModelForCausalLM.from_pretrained(policy, dtype="float32"),
    args=config,
    train_dataset=task_dataset(suite, range(10_000, 10_000 + options.tasks * options.steps)),  # below: for evaluation
    processing_class=AutoTokenizer.from_pretrained(policy),
    suite=suite,
    num_envs=8,
    terminal_options={"latency": options.latency},
    world_model=world_model,
    peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"),
) as trainer:
    trainer.train()
    trainer.save_policy(options.out)  # adapters merged in
world_model.close()
