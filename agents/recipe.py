"""Makes the shipped pair from nothing: records, trains, records a first policy's mistakes, trains on, evaluates.

Both final models go on from the first policy, which has learnt to copy names and a little of what tools print.

Two processes at a time, one thread each. The steps leave their files in ``--folder``; a step whose files are there
is not done again, so that an interrupted run goes on where it was.

Example::

    python -m agents.recipe
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from agents.card import write_cards
from agents.corpus import Episode, load
from agents.tokenizer import save_tokenizer, train_tokenizer
from agents.train import CONTEXT

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = ROOT / "obsspec_gym" / "agents" / "shipped"

EXPERTS, MIXED, HASTY = 10_000, 100_000, 200_000
"""First task index of each kind of episode; tasks below 10,000 are for evaluation."""

_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


class Step:
    """Named steps with their wall seconds, which the card reports."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "seconds.json"

    def __call__(self, name: str, results: Iterable[Path], *chains: Sequence[list[str]]) -> None:
        """Runs chains of commands side by side, unless their results are there."""
        if all(result.exists() for result in results):
            print(f"{name}: done before", flush=True)
            return
        print(f"{name} ...", flush=True)
        started = time.perf_counter()
        with ThreadPoolExecutor(len(chains)) as pool:
            list(pool.map(run_chain, chains))
        self.note(name, time.perf_counter() - started)

    def note(self, name: str, seconds: float) -> None:
        """Writes down how long a step took."""
        seconds_of = json.loads(self.log.read_text()) if self.log.exists() else {}
        self.log.write_text(json.dumps(seconds_of | {name: round(seconds)}, indent=1) + "\n")
        print(f"{name}: {seconds:.0f} s", flush=True)


def run_chain(commands: Sequence[list[str]]) -> None:
    """Runs Python modules one after the other."""
    for command in commands:
        subprocess.run([sys.executable, "-m", *command], cwd=ROOT, env=os.environ | _ENVIRONMENT, check=True)


def texts(episodes: Iterable[Episode]) -> Iterable[str]:
    """Everything in episodes that is going to be tokenised."""
    for episode in episodes:
        yield episode.instruction
        for turn in episode.turns:
            yield turn.command
            yield turn.observation


def make_tokenizer(step: Step, experts: Path, folder: Path) -> None:
    """Learns the tokenizer from the experts' episodes."""
    if not (folder / "tokenizer.json").exists():
        started = time.perf_counter()
        save_tokenizer(train_tokenizer(texts(load(experts))), folder, CONTEXT)
        step.note("tokenizer", time.perf_counter() - started)


def recipe(args: argparse.Namespace) -> None:
    """All steps."""
    folder: Path = args.folder
    folder.mkdir(parents=True, exist_ok=True)
    step = Step(folder)
    experts, more, mixed, hasty = (folder / f"{name}.jsonl" for name in ("experts", "more", "mixed", "hasty"))
    tokenizer, first, policy = folder / "tokenizer", folder / "first", folder / "policy"
    world, world_model = folder / "world", folder / "world_model"
    evaluation = folder / "evaluation.json"

    def record(first_index: int, count: int, out: Path, *options: str) -> list[str]:
        return ["agents.record", "--sandbox", args.sandbox, "--seed", str(args.seed), "--first", str(first_index),
                "--count", str(count), "--out", str(out), *options]  # fmt: skip

    def learn(role: str, data: Sequence[Path], steps: int, out: Path, *options: str) -> list[str]:
        return ["agents.train", role, "--data", *map(str, data), "--tokenizer", str(tokenizer), "--seed",
                str(args.seed), "--steps", str(steps), "--out", str(out), *options]  # fmt: skip

    def done(model: Path) -> Path:
        return model / "training.json"

    step("experts", [experts], [record(EXPERTS, args.experts, experts)])
    make_tokenizer(step, experts, tokenizer)
    step(
        "first policy and more experts",
        [done(first), more],
        [learn("policy", [experts], args.first_steps, first)],
        [record(EXPERTS + args.experts, args.experts, more, "--workers", "1")],
    )
    step("mixed", [mixed], [record(MIXED, args.mixed, mixed, "--policy", str(first), "--share", "0.7")])
    data, start = [experts, more, mixed], ("--start", str(first))
    step(
        "policy and wrong edits, and world model",
        [done(policy), done(world), hasty],
        [
            learn("policy", data, args.policy_steps, policy, *start),
            record(HASTY, args.hasty, hasty, "--wrong-edits", "0.6", "--workers", "1"),
        ],
        [learn("world", data, args.world_steps, world, *start)],
    )
    step(
        "world model, second round",
        [done(world_model)],
        [learn("world", [*data, hasty], args.second_steps, world_model, "--start", str(world))],
    )
    step(
        "evaluation",
        [evaluation],
        [
            ["agents.evaluate", "--policy", str(policy), "--world-model", str(world_model), "--sandbox", args.sandbox,
             "--episodes", str(args.episodes), "--groups", str(args.groups), "--out", str(evaluation)]
        ],
    )  # fmt: skip
    if args.ship:
        for model in (policy, world_model):
            shutil.copytree(
                model, SHIPPED / model.name, dirs_exist_ok=True, ignore=shutil.ignore_patterns("training.json")
            )
        write_cards(folder, ROOT / "agents")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Make the shipped policy and world model.")
    parser.add_argument("--folder", type=Path, default=Path("build/pair"))
    parser.add_argument("--sandbox", default="bubblewrap")
    parser.add_argument(
        "--experts", type=int, default=2048, help="expert episodes before, and beside, the first training"
    )
    parser.add_argument("--mixed", type=int, default=1536, help="episodes of the first policy with an expert")
    parser.add_argument("--hasty", type=int, default=1024, help="episodes with wrong edits, for the world model")
    parser.add_argument("--first-steps", type=int, default=700)
    parser.add_argument("--policy-steps", type=int, default=550)
    parser.add_argument("--world-steps", type=int, default=2000)
    parser.add_argument("--second-steps", type=int, default=700)
    parser.add_argument("--episodes", type=int, default=100, help="evaluation episodes, a split")
    parser.add_argument("--groups", type=int, default=12, help="evaluation groups of 8 episodes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ship", action=argparse.BooleanOptionalAction, default=True, help="replace the shipped pair")
    recipe(parser.parse_args())


if __name__ == "__main__":
    main()
