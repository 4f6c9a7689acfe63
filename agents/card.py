"""Writes the cards of the shipped pair from what the recipe left behind."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from agents.corpus import Episode, load
from agents.tokenizer import VOCABULARY


@dataclass(frozen=True)
class Model:
    """What a card says of a model that no file tells.

    Attributes:
        title: Heading.
        purpose: What it is for.
        learnt: What its loss is on.
        rounds: The folders of its rounds of training, oldest first.
        note: What else must be known.
    """

    title: str
    purpose: str
    learnt: str
    rounds: tuple[str, ...]
    note: str


MODELS = {
    "policy": Model(
        "Policy",
        "Solves the generated tasks of the suite `basics` in a terminal: it reads the compact dialogue and writes the "
        "next command after `<|act|>`, up to `<|end|>`.",
        "the taught commands of solved episodes and their `<|end|>`; observations with weight 0.3",
        ("first", "policy"),
        "Stopped early on purpose: at temperature 1 it fails often enough that reinforcement learning has something to "
        "improve. With 1,300 instead of 550 steps in its last round it solves 94 % at temperature 1.",
    ),
    "world_model": Model(
        "World model",
        "Predicts what a command of such an episode prints: it reads the compact dialogue and writes the observation "
        "after `<|obs|>`, up to `<|act|>` where the episode goes on or `<|end|>` where it ends.",
        "observations and the token after each; commands with weight 0.3",
        ("first", "world", "world_model"),
        "Its first round is the first policy, whose loss is mostly on commands. The last round adds episodes with many "
        "wrong edits: without them it expects every edit to be right.",
    ),
}

DATA = ("experts", "more", "mixed", "hasty")
"""The files of episodes."""

LIMITS = (
    "The model knows four kinds of generated tasks and little English. On anything else it types something that looks "
    "like them. It is made to show and to test how rollouts are collected and trained on a small machine, not to be "
    "useful. Run it in a sandbox, as any agent."
)


def write_cards(folder: Path, out: Path) -> None:
    """Writes one card a model.

    Args:
        folder: Where the recipe worked.
        out: Gets ``card_policy.md`` and ``card_world_model.md``.
    """
    evaluation = json.loads((folder / "evaluation.json").read_text())
    seconds = json.loads((folder / "seconds.json").read_text())
    data = "\n".join(f"| {name} | {data_line(load(folder / f'{name}.jsonl'))} |" for name in DATA)
    for name, model in MODELS.items():
        rounds = {part: json.loads((folder / part / "training.json").read_text()) for part in model.rounds}
        size = (folder / name / "model.safetensors").stat().st_size
        (out / f"card_{name}.md").write_text(card(model, rounds, size, data, seconds, evaluation))


def card(
    model: Model,
    rounds: Mapping[str, Mapping[str, Any]],
    size: int,
    data: str,
    seconds: Mapping[str, int],
    evaluation: Mapping[str, Any],
) -> str:
    """The text of a card."""
    seed = next(iter(rounds.values()))["seed"]
    return f"""\
# {model.title} of the shipped pair

{model.purpose}

- Architecture: Qwen3, 4 layers, 160 wide, 4 heads, 2 key-value heads, feed-forward 448, tied embeddings, vocabulary
  {VOCABULARY}; 1.3 million parameters, float32, {size / 1e6:.1f} MB of safetensors.
- Made by `make pair` (`python -m agents.recipe`), seed {seed}. Batches of about 2,048 tokens; Muon 4e-3 for matrices,
  AdamW 4e-3 for the rest; in every round 40 warm-up steps and a linear decay over the last 40 %.
- Loss: {model.learnt}.
- Observation format version 1.

{model.note}

## Data

Recorded in bubblewrap sandboxes from generated tasks with indices from 10,000 on; those below are for evaluation.
`agents/README.md` says what the kinds of episodes are.

| | episodes |
|-|-|
{data}

Wall seconds on 2 cores: {", ".join(f"{name} {value}" for name, value in seconds.items())}.

## Losses

Held-back: 100 episodes (5 % of fewer than 2,000) that this round was not trained on; the role's own tokens only.

| round | step | tokens | training loss (smoothed) | held-back loss |
|-|-|-|-|-|
{losses(rounds)}

## Evaluation

Unseen tasks in real sandboxes, slow commands at full length. Time-weighted: by the seconds the tools ran. Gated: where
the probability of the whole predicted sequence is at least the threshold.

```json
{json.dumps(evaluation, indent=1)}
```

## Limits

{LIMITS}
"""


def data_line(episodes: Iterable[Episode]) -> str:
    """How many episodes there are, how long, and how many were solved."""
    records = list(episodes)
    turns = sum(len(episode.turns) for episode in records)
    return f"{len(records):,} episodes ({turns:,} turns, {mean(e.reward for e in records):.1%} solved)"


def losses(rounds: Mapping[str, Mapping[str, Any]]) -> str:
    """The rows of the rounds' training logs."""
    return "\n".join(
        f"| {name} | {row['step']} | {row['tokens']:,} | {row['loss']:.4f} | {row['held_back']:.4f} |"
        for name, training in rounds.items()
        for row in training["log"]
        if row["step"] % 200 == 0 or row is training["log"][-1]
    )
