"""Trains one of the two models on recorded episodes.

Example::

    python -m agents.train policy --data build/pair/episodes.jsonl --tokenizer build/pair/tokenizer \\
        --steps 4000 --seed 0 --out build/pair/policy
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from agents.corpus import Example, encode, load
from agents.optimizer import optimizers
from agents.tokenizer import CONTEXT, save_tokenizer
from obsspec_gym.agents.dialogue import ACT, END, PAD
from obsspec_gym.envs.observation import ObservationFormat

_POOL = 512
_HELD_BACK = 100
"""Episodes kept out of training at most, for the validation loss."""


def build_model(tokenizer: Tokenizer) -> Qwen3ForCausalLM:
    """A fresh model of the Qwen3 architecture with 1.3 million parameters."""
    config = Qwen3Config(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=160,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=40,
        intermediate_size=448,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.token_to_id(END),
        pad_token_id=tokenizer.token_to_id(PAD),
    )
    config._attn_implementation = "sdpa"
    return Qwen3ForCausalLM(config)


def batches(examples: list[Example], tokens: int, rng: Random) -> Iterator[list[Example]]:
    """Endless batches of about ``tokens`` tokens, of episodes of like length."""
    while True:
        order = list(examples)
        rng.shuffle(order)
        for start in range(0, len(order), _POOL):
            pool = sorted(order[start : start + _POOL], key=lambda example: len(example.ids))
            groups: list[list[Example]] = [[]]
            for example in pool:
                if groups[-1] and (len(groups[-1]) + 1) * len(example.ids) > tokens:
                    groups.append([])
                groups[-1].append(example)
            rng.shuffle(groups)
            yield from groups


def tensors(batch: list[Example], role: str, other: float, pad: int) -> tuple[Tensor, Tensor]:
    """Token ids and loss weights, padded on the right: (B, L) each."""
    length = max(len(example.ids) for example in batch)
    ids = torch.full((len(batch), length), pad)
    weights = torch.zeros((len(batch), length))
    for row, example in enumerate(batch):
        ids[row, : len(example.ids)] = torch.tensor(example.ids)
        mine, others = (example.policy, example.world) if role == "policy" else (example.world, example.policy)
        weight = torch.tensor(mine) + other * torch.tensor(others)
        weights[row, : len(example.ids)] = weight
    return ids, weights


def loss_of(model: PreTrainedModel, ids: Tensor, weights: Tensor) -> Tensor:
    """Mean cross-entropy of the weighted tokens. Right padding needs no mask: nothing real looks at it."""
    logits = model(input_ids=ids[:, :-1], use_cache=False).logits
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    weights = weights[:, 1:].flatten()
    return (losses * weights).sum() / weights.sum().clamp(min=1)


def rate_at(step: int, steps: int, decay: float, warm_up: int = 40) -> float:
    """The learning rate's factor: up over ``warm_up`` steps, flat, then linearly down over the share ``decay``."""
    down = (steps - step) / (decay * steps) if decay > 0 else 1.0
    return min(1.0, (step + 1) / warm_up, down)


@torch.no_grad()
def validation_loss(model: PreTrainedModel, examples: list[Example], role: str, pad: int) -> float:
    """Mean cross-entropy of the role's own tokens on episodes kept out of training."""
    total = count = 0.0
    for start in range(0, len(examples), 8):
        ids, weights = tensors(examples[start : start + 8], role, 0.0, pad)
        size = float(weights.sum())
        total, count = total + float(loss_of(model, ids, weights)) * size, count + size
    return total / max(count, 1.0)


def train(args: argparse.Namespace) -> None:
    """Trains and writes a model."""
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    rng = Random(args.seed)
    tokenizer = Tokenizer.from_file(str(args.tokenizer / "tokenizer.json"))
    pad = tokenizer.token_to_id(PAD)
    examples = [encode(episode, tokenizer, args.slow) for path in args.data for episode in load(path)]
    examples = [example for example in examples if len(example.ids) <= CONTEXT]
    rng.shuffle(examples)
    split = min(_HELD_BACK, len(examples) // 20)
    held_back, examples = examples[:split], examples[split:]
    model = build_model(tokenizer)
    if args.start is not None:
        model = Qwen3ForCausalLM.from_pretrained(args.start, attn_implementation="sdpa")
    updaters = optimizers(model, args.matrix_rate, args.other_rate)
    rates = [updater.param_groups[0]["lr"] for updater in updaters]
    source, started, seen, smooth = batches(examples, args.tokens, rng), time.perf_counter(), 0, math.nan
    log = []
    for step in range(args.steps):
        for updater, rate in zip(updaters, rates, strict=True):
            updater.param_groups[0]["lr"] = rate * rate_at(step, args.steps, args.decay)
        ids, weights = tensors(next(source), args.role, args.other, pad)
        loss = loss_of(model, ids, weights)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for updater in updaters:
            updater.step()
            updater.zero_grad(set_to_none=True)
        seen += ids.numel()
        smooth = loss.item() if step == 0 else 0.98 * smooth + 0.02 * loss.item()
        if step % args.report == 0 or step == args.steps - 1:
            held = validation_loss(model, held_back, args.role, pad)
            seconds = time.perf_counter() - started
            log.append({"step": step, "tokens": seen, "loss": smooth, "held_back": held, "seconds": seconds})
            print(json.dumps(log[-1]), flush=True)
    facts = {"role": args.role, "seed": args.seed, "steps": args.steps, "episodes": len(examples), "log": log}
    save_model(model, tokenizer, args.out, facts)


def save_model(model: Qwen3ForCausalLM, tokenizer: Tokenizer, folder: Path, facts: dict[str, object]) -> None:
    """Writes weights, configuration, tokenizer and the training log as one folder."""
    role_end = [END] if facts["role"] == "policy" else [ACT, END]
    pad = tokenizer.token_to_id(PAD)
    model.generation_config = GenerationConfig(
        do_sample=True, eos_token_id=[tokenizer.token_to_id(name) for name in role_end], pad_token_id=pad
    )
    model.config.observation_format = ObservationFormat.version
    model.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    save_tokenizer(tokenizer, folder, CONTEXT)
    (folder / "training.json").write_text(json.dumps(facts, indent=1) + "\n")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train one model of the shipped pair.")
    parser.add_argument("role", choices=("policy", "world"))
    parser.add_argument("--data", type=Path, nargs="+", required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--start", type=Path, help="continue from this model")
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--tokens", type=int, default=2048, help="tokens a batch")
    parser.add_argument("--other", type=float, default=0.3, help="weight of the other role's tokens in the loss")
    parser.add_argument("--slow", type=float, default=1.0, help="how much more slow programs' observations count")
    parser.add_argument("--matrix-rate", type=float, default=4e-3)
    parser.add_argument("--other-rate", type=float, default=4e-3)
    parser.add_argument("--decay", type=float, default=0.4, help="share of the steps in which the rate falls to 0")
    parser.add_argument("--report", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
