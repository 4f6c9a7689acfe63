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
from collections.abc import Iterable
from pathlib import Path

from agents.card import write_cards
from agents.corpus import Episode, load
from agents.tokenizer import save_tokenizer, train_tokenizer
from agents.train import CONTEXT

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = ROOT / "obsspec_gym" / "agents" / "shipped"

FIRST_INDEX, FIRST_MIXED_INDEX = 10_000, 100_000
"""Where the tasks of training begin; those below 10,000 are for evaluation."""

_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


class Step:
    """Named steps with their wall seconds, which the card reports."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "seconds.json"

    def __call__(self, name: str, results: Iterable[Path], *commands: list[str]) -> None:
        """Runs commands side by side, unless their results are there."""
        if all(result.exists() for result in results):
            print(f"{name}: done before", flush=True)
            return
        print(f"{name} ...", flush=True)
        started = time.perf_counter()
        running = [
            subprocess.Popen([sys.executable, "-m", *command], cwd=ROOT, env=os.environ | _ENVIRONMENT)
            for command in commands
        ]
        try:
            failed = [process.args for process in running if process.wait() != 0]
        finally:
            for process in running:
                process.terminate()
        if failed:
            raise SystemExit(f"{name} failed: {failed[0]}")
        self.note(name, time.perf_counter() - started)

    def note(self, name: str, seconds: float) -> None:
        """Writes down how long a step took."""
        seconds_of = json.loads(self.log.read_text()) if self.log.exists() else {}
        self.log.write_text(json.dumps(seconds_of | {name: round(seconds)}, indent=1) + "\n")
        print(f"{name}: {seconds:.0f} s", flush=True)


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
    experts, more, mixed = (folder / f"{name}.jsonl" for name in ("experts", "more", "mixed"))
    tokenizer, first, policy, world = (folder / name for name in ("tokenizer", "first", "policy", "world"))
    seed, sandbox = str(args.seed), args.sandbox
    record = ["agents.record", "--sandbox", sandbox, "--seed", seed]
    learn = ["agents.train", "policy", "--tokenizer", str(tokenizer), "--seed", seed]
    count, later = str(args.experts), str(FIRST_INDEX + args.experts)

    step("experts", [experts], [*record, "--first", str(FIRST_INDEX), "--count", count, "--out", str(experts)])
    make_tokenizer(step, experts, tokenizer)
    step(
        "first policy and more experts",
        [first / "training.json", more],
        [*learn, "--data", str(experts), "--steps", str(args.first_steps), "--out", str(first)],
        [*record, "--first", later, "--count", count, "--workers", "1", "--out", str(more)],
    )
    step(
        "mixed",
        [mixed],
        [*record, "--first", str(FIRST_MIXED_INDEX), "--count", str(args.mixed), "--policy", str(first),
         "--share", "0.7", "--out", str(mixed)],
    )  # fmt: skip
    rest = ["--data", str(experts), str(more), str(mixed), "--tokenizer", str(tokenizer), "--seed", seed,
            "--start", str(first)]  # fmt: skip
    step(
        "training",
        [policy / "training.json", world / "training.json"],
        ["agents.train", "policy", *rest, "--steps", str(args.policy_steps), "--out", str(policy)],
        ["agents.train", "world", *rest, "--steps", str(args.world_steps), "--out", str(world)],
    )
    evaluation = folder / "evaluation.json"
    step(
        "evaluation",
        [evaluation],
        ["agents.evaluate", "--policy", str(policy), "--world-model", str(world), "--sandbox", sandbox,
         "--episodes", str(args.episodes), "--out", str(evaluation)],
    )  # fmt: skip
    if args.ship:
        for source, name in ((policy, "policy"), (world, "world_model")):
            shutil.copytree(source, SHIPPED / name, dirs_exist_ok=True, ignore=shutil.ignore_patterns("training.json"))
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
    parser.add_argument("--first-steps", type=int, default=700)
    parser.add_argument("--policy-steps", type=int, default=550)
    parser.add_argument("--world-steps", type=int, default=2000)
    parser.add_argument("--episodes", type=int, default=100, help="evaluation episodes, a split")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ship", action=argparse.BooleanOptionalAction, default=True, help="replace the shipped pair")
    recipe(parser.parse_args())


if __name__ == "__main__":
    main()
