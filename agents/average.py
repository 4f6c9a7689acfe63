"""Averages the weights of models of one run that was gone on with: less of what each last saw, more of what both know.

Example::

    python -m agents.average build/pair/world_second build/pair/world_third --out build/pair/world
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedModel, Qwen3ForCausalLM

from agents.train import save_model


def mean_of(models: Sequence[PreTrainedModel]) -> PreTrainedModel:
    """The first of the models, with the mean of all their weights."""
    states = [model.state_dict() for model in models]
    models[0].load_state_dict({name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]})
    return models[0]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Average the weights of models.")
    parser.add_argument("models", type=Path, nargs="+", help="what agents.train made, the last run at the end")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if len(args.models) < 2:
        parser.error(f"expected at least two models, got {len(args.models)}")
    first, *_, last = folders = args.models
    facts, before = (json.loads((folder / "training.json").read_text()) for folder in (last, first))
    average = mean_of([Qwen3ForCausalLM.from_pretrained(folder) for folder in folders])
    save_model(average, Tokenizer.from_file(str(last / "tokenizer.json")), args.out, facts | {"seed": before["seed"]})


if __name__ == "__main__":
    main()
