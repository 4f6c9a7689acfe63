"""Writes the cards of the shipped pair from what the recipe left behind."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from agents.corpus import Episode, load
from agents.tokenizer import VOCABULARY

DATA = ("experts", "more", "mixed", "own", "more_own", "yet_more")
"""Names of the recorded episodes, in the order in which they are made."""

STEPS = ("first", "world_begun", "world_second", "world_third", "world_fourth")
"""Trainings whose steps the cards tell."""

ROLES = {
    "policy": (
        "Policy",
        "Solves generated tasks in a terminal, those of the suite `basics` mostly and those of the other twelve "
        "families of `terminal` less often: it reads the compact dialogue and writes the next command after `<|act|>`, "
        "up to `<|end|>`.",
        "the taught commands of solved episodes and their `<|end|>`; observations with weight 0.3",
    ),
    "world": (
        "World model",
        "Predicts what a command of such an episode prints: it reads the compact dialogue and writes the observation "
        "after `<|obs|>`, up to `<|act|>` where the episode goes on or `<|end|>` where it ends.",
        "observations and the token after each, those of slow programs (one a family, as `./run_tests` and `./build`)\n"
        "  four times as much as others; commands with weight 0.3",
    ),
}

STOPPED_EARLY = (
    " Stopped early on purpose, and half of the episodes are of `basics` alone, whose four families\n"
    "  are a quarter of `terminal`: reinforcement learning has something to improve."
)

OWN = (
    " After {begun:,} steps on these without decay (a run of its own) come, three times over,\n"
    "  {own} of the final policy alone, at temperature 1: what the model has to\n"
    "  foresee, for {second:,} steps; then {third:,} steps on new episodes only, {more_own}\n"
    "  of the policy alone and {yet_more} of experts; then, from the mean of the weights\n"
    "  after these two, {fourth:,} steps on the new ones again, with a quarter of the rates, which fall to 0 from the\n"
    "  beginning (the losses below are of this run). The weights are the mean of those after the last three runs."
)

SURE = (
    "\n- How sure it is of a prediction (`confidence.json`) was fitted on rollouts of the policy on other tasks of "
    "training:\n  a logistic regression of the text's probability and of how surprising the actions so far were to the "
    "model itself."
)

CHOSEN = (
    "Weights and rates were chosen on tasks 0 to 455, what confidence reads on tasks 0 to 2199, for an earlier\n"
    "pair; that the world model is a mean, and the threshold 0.875, on tasks 401,000 to 401,399; none of it on\n"
    "those below. A first evaluation of this pair gave all confidences from 0.85 to 0.9 one probability (precision\n"
    "0.9497 at 0.520 of the tool time); that was mended then. A held-back loss is not strictly of unseen episodes,\n"
    "for the first policy had trained on most of them."
)

LIMITS = (
    "The model knows sixteen kinds of generated tasks and little English. On anything else it types something that "
    "looks like them. It is made to show and to test how rollouts are collected and trained on a small machine, not to "
    "be useful. Run it in a sandbox, as any agent."
)


def write_cards(folder: Path, out: Path) -> None:
    """Writes one card a model.

    Args:
        folder: Where the recipe worked.
        out: Gets ``card_policy.md`` and ``card_world_model.md``.
    """
    evaluation = json.loads((folder / "evaluation.json").read_text())
    seconds = json.loads((folder / "seconds.json").read_text())
    data = json.loads((folder / "data.json").read_text())
    for role, name in (("policy", "policy"), ("world", "world_model")):
        training = json.loads((folder / role / "training.json").read_text())
        size = (folder / role / "model.safetensors").stat().st_size
        steps = {part: json.loads((folder / part / "training.json").read_text())["steps"] for part in STEPS}
        (out / f"card_{name}.md").write_text(card(role, training, size, data, steps, seconds, evaluation))


def note_data(folder: Path) -> None:
    """Counts the recorded episodes that are in a folder, into its ``data.json``; what it says of others stays."""
    path = folder / "data.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    files = {name: folder / f"{name}.jsonl" for name in DATA}
    counted = {name: data_line(load(file)) for name, file in files.items() if file.exists()}
    path.write_text(json.dumps(known | counted, indent=1) + "\n")


def card(
    role: str,
    training: Mapping[str, Any],
    size: int,
    data: Mapping[str, str],
    steps: Mapping[str, int],
    seconds: Mapping[str, int],
    evaluation: Mapping[str, Any],
) -> str:
    """The text of a card."""
    title, purpose, learnt = ROLES[role]
    note = STOPPED_EARLY if role == "policy" else ""
    parts = {name.removeprefix("world_"): count for name, count in steps.items()}
    own, made, on = "", training["steps"], f" on {training['episodes']:,} episodes"
    if role == "world":
        own = OWN.format(**data, **parts) + SURE
        made, on = sum(steps.values()) - steps["first"], " in four runs, of which more below"
    return f"""\
# {title} of the shipped pair

{purpose}

- Architecture: Qwen3, 4 layers, 160 wide, 4 heads, 2 key-value heads, feed-forward 448, tied embeddings, vocabulary
  {VOCABULARY}; 1.3 million parameters, float32, {size / 1e6:.1f} MB of safetensors.
- Made by `python -m agents.recipe` (`make pair`), seed {training["seed"]}: {made} steps of about 2,048
  tokens{on}; Muon 4e-3 for matrices, AdamW 4e-3 for the rest, 40 warm-up steps,
  linear decay over the last 40 %. Observation format version 1.
- Learnt: {learnt}.{note}
- Data: recorded in bubblewrap sandboxes, tasks of `basics` and of `terminal` (all sixteen families) in equal parts.
  Never seen: whole templates, some phrasings of each family (splits `:templates`); the words of the splits `:words`;
  task indices below 10,000.
  {data["experts"]} and {data["more"]} with experts that make a mistake with every tenth command (never learnt as a
  command). {data["mixed"]} in which a first policy, trained for {steps["first"]} steps on
  the first of these, chose 70 % of the commands and the expert the rest; a command is learnt where the expert would
  have chosen the same. Both models go on from that first policy.{own}
- Wall seconds of the recipe's steps on 2 cores: {", ".join(f"{name} {value}" for name, value in seconds.items())}.

## Losses

{losses(training["log"])}

## Evaluation

Unseen tasks in real sandboxes, slow commands at full length. Time-weighted: by the seconds the tools ran.
{CHOSEN}

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


def losses(log: Iterable[Mapping[str, float]]) -> str:
    """The training log as a table of at most a dozen rows."""
    rows = list(log)
    kept = [row for number, row in enumerate(rows) if number % max(1, len(rows) // 10) == 0 or row is rows[-1]]
    lines = [f"| {r['step']} | {r['tokens']:,} | {r['loss']:.4f} | {r['held_back']:.4f} |" for r in kept]
    return "\n".join(["| step | tokens | training loss (smoothed) | held-back loss |", "|-|-|-|-|", *lines])
