"""Makes the shipped pair from nothing: records, trains, records a first policy's mistakes, trains on, evaluates.

Both final models go on from the first policy, which has learnt to copy names and a little of what tools print. The
world model goes on, twice, with what the final policy does when nobody helps it, for that is what it will have to
foresee: with some episodes several times over, then with many new ones, then with these again and gently, from the mean
of the weights so far. It ends as the mean of all three, which is better than each.

Two processes at a time, one thread each; the last training, which runs alone, has two threads. The steps leave their
files in ``--folder``; a step whose files are there is not done again, so that an interrupted run goes on where it was.

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
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TypeAlias

from agents.card import DATA, note_data, write_cards
from agents.corpus import SUITES, Episode, load
from agents.tokenizer import CONTEXT, save_tokenizer, train_tokenizer
from obsspec_gym.agents.world_model.confidence import FILE as CONFIDENCE

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = ROOT / "obsspec_gym" / "agents" / "shipped"

FIRST_INDEX, FIRST_MIXED_INDEX, FIRST_OWN_INDEX, FIRST_JUDGED_INDEX = 10_000, 100_000, 200_000, 300_000
"""Where the tasks of training begin; those below 10,000 are for evaluation."""

SLOW_WEIGHT = "4"
"""How much more the world model learns from programs that take time."""

_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


Command: TypeAlias = tuple[Path, list[str]]
"""What a command leaves behind, and the module with its arguments."""


class Steps:
    """Named steps with their wall seconds, which the card reports."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "seconds.json"
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopped = False

    def __call__(self, name: str, *sides: Sequence[Command]) -> None:
        """Runs sequences of commands side by side; a command whose result is there is not run again.

        Raises:
            SystemExit: If one fails; the others are stopped.
        """
        if all(result.exists() for side in sides for result, _ in side):
            print(f"{name}: done before", flush=True)
            return
        print(f"{name} ...", flush=True)
        started = time.perf_counter()
        with ThreadPoolExecutor(len(sides)) as pool:
            try:
                for done in as_completed([pool.submit(self._one_after_another, side) for side in sides]):
                    done.result()
            except BaseException:
                self._stopped = True
                for process in tuple(self._running):
                    process.terminate()
                raise
        self.note(name, time.perf_counter() - started)

    def _one_after_another(self, side: Sequence[Command]) -> None:
        for result, command in side:
            if result.exists():
                continue
            process = subprocess.Popen([sys.executable, "-m", *command], cwd=ROOT, env=os.environ | _ENVIRONMENT)
            self._running.add(process)
            if self._stopped:
                process.terminate()
            status = process.wait()
            self._running.discard(process)
            if status != 0:
                raise SystemExit(f"{' '.join(command)} failed with exit status {status}")

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


def make_tokenizer(step: Steps, experts: Path, folder: Path) -> None:
    """Learns the tokenizer from the experts' episodes."""
    if not (folder / "tokenizer.json").exists():
        started = time.perf_counter()
        save_tokenizer(train_tokenizer(texts(load(experts))), folder, CONTEXT)
        step.note("tokenizer", time.perf_counter() - started)


def recipe(args: argparse.Namespace) -> None:
    """All steps."""
    folder: Path = args.folder
    folder.mkdir(parents=True, exist_ok=True)
    step = Steps(folder)
    experts, more, mixed, own, more_own, yet_more = (folder / f"{name}.jsonl" for name in DATA)
    tokenizer, first, policy = (folder / name for name in ("tokenizer", "first", "policy"))
    begun, second, third, middle, fourth = (
        folder / f"world_{name}" for name in ("begun", "second", "third", "middle", "fourth")
    )
    world = folder / "world"
    evaluation = folder / "evaluation.json"

    def record(out: Path, first_index: int, count: int, *more: str | Path) -> Command:
        numbers = ["--first", str(first_index), "--count", str(count), "--seed", str(args.seed)]
        files = ["--sandbox", args.sandbox, "--out", str(out)]
        return out, ["agents.record", "--suite", *SUITES, *numbers, *files, *map(str, more)]

    def train(role: str, out: Path, steps: int, data: Sequence[Path], *more: str | Path) -> Command:
        numbers = ["--steps", str(steps), "--seed", str(args.seed)]
        files = ["--data", *data, "--tokenizer", tokenizer, "--out", out, *more]
        return out / "training.json", ["agents.train", role, *numbers, *map(str, files)]

    def average(models: Sequence[Path], out: Path) -> Command:
        return out / "training.json", ["agents.average", *map(str, models), "--out", str(out)]

    step("experts", [record(experts, FIRST_INDEX, args.experts)])
    make_tokenizer(step, experts, tokenizer)
    step(
        "first policy and more experts",
        [train("policy", first, args.first_steps, [experts])],
        [record(more, FIRST_INDEX + args.experts, args.more, "--workers", "1")],
    )
    step("mixed", [record(mixed, FIRST_MIXED_INDEX, args.mixed, "--policy", first, "--share", "0.7")])
    played = [experts, more, mixed]
    step(
        "policy, its own episodes, and half of the world model",
        [
            train("policy", policy, args.policy_steps, played, "--start", first),
            record(own, FIRST_OWN_INDEX, args.own, "--policy", policy, "--workers", "1"),
        ],
        [train("world", begun, args.begun_steps, played, "--start", first, "--decay", "0", "--slow", SLOW_WEIGHT)],
    )
    step(
        "world model's second part, and more episodes",
        [train("world", second, args.second_steps, [*played, own, own, own], "--start", begun, "--slow", SLOW_WEIGHT)],
        [
            record(more_own, FIRST_OWN_INDEX + args.own, args.more_own, "--policy", policy, "--workers", "1"),
            record(yet_more, FIRST_INDEX + args.experts + args.more, args.yet_more, "--workers", "1"),
        ],
    )
    new, slow = [more_own, yet_more], ["--slow", SLOW_WEIGHT, "--threads", "2"]
    # Another order of the same episodes, and never more than a quarter of the rate.
    gently = ["--seed", str(args.seed + 1), "--matrix-rate", "1e-3", "--other-rate", "1e-3", "--decay", "1"]
    step(
        "world model's third and fourth part, and the mean",
        [
            train("world", third, args.third_steps, new, *slow, "--start", second),
            average([second, third], middle),
            train("world", fourth, args.fourth_steps, new, *slow, *gently, "--start", middle),
            average([second, third, fourth], world),
        ],
    )
    pair = ["--policy", str(policy), "--world-model", str(world), "--sandbox", args.sandbox]
    judged = [*pair, "--first", str(FIRST_JUDGED_INDEX), "--episodes", str(args.judged)]
    step("confidence", [(world / CONFIDENCE, ["agents.confidence", "--suite", *SUITES, *judged])])
    figures = ["--episodes", str(args.episodes), "--sampled", str(4 * args.episodes), "--out", str(evaluation)]
    step("evaluation", [(evaluation, ["agents.evaluate", *pair, *figures])])
    if args.ship:
        for source, name in ((policy, "policy"), (world, "world_model")):
            shutil.copytree(source, SHIPPED / name, dirs_exist_ok=True, ignore=shutil.ignore_patterns("training.json"))
        note_data(folder)
        write_cards(folder, ROOT / "agents")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Make the shipped policy and world model.")
    parser.add_argument("--folder", type=Path, default=Path("build/pair"))
    parser.add_argument("--sandbox", default="bubblewrap")
    parser.add_argument("--experts", type=int, default=2560, help="expert episodes before the first training")
    parser.add_argument("--more", type=int, default=1536, help="expert episodes beside it")
    parser.add_argument("--mixed", type=int, default=1792, help="episodes of the first policy with an expert")
    parser.add_argument("--first-steps", type=int, default=900)
    parser.add_argument("--policy-steps", type=int, default=1100)
    parser.add_argument("--own", type=int, default=1280, help="episodes of the policy alone")
    parser.add_argument(
        "--begun-steps", type=int, default=1500, help="of the world model, before its policy's episodes"
    )
    parser.add_argument("--second-steps", type=int, default=1800, help="of the world model, with them")
    parser.add_argument("--more-own", type=int, default=2560, help="more episodes of the policy alone")
    parser.add_argument("--yet-more", type=int, default=1280, help="expert episodes beside them")
    parser.add_argument("--third-steps", type=int, default=2000, help="of the world model, on the last two")
    parser.add_argument("--fourth-steps", type=int, default=700, help="of the world model, on the same once more")
    parser.add_argument("--judged", type=int, default=250, help="episodes that confidence is fitted on, a suite")
    parser.add_argument("--episodes", type=int, default=100, help="evaluation episodes, a split")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ship", action=argparse.BooleanOptionalAction, default=True, help="replace the shipped pair")
    recipe(parser.parse_args())


if __name__ == "__main__":
    main()
