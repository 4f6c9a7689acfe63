"""Records episodes in real sandboxes: experts with mistakes thrown in, or a policy with an expert at its side.

The tasks of several suites take turns, sixteen at a time.

Example::

    python -m agents.record --suite basics terminal --first 10000 --count 400 --out build/pair/experts.jsonl
    python -m agents.record --first 20000 --count 200 --policy build/pair/policy --share 0.7 \\
        --out build/pair/mixed.jsonl
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Protocol

from tokenizers import Tokenizer

from agents.corpus import LONGEST, Episode, Turn, command_of, dialogue, save
from agents.noise import mistake
from agents.tokenizer import CONTEXT
from obsspec_gym.agents.dialogue import END
from obsspec_gym.agents.engine.transformers import TransformersEngine
from obsspec_gym.envs.command import submitted_answer
from obsspec_gym.envs.observation import ObservationFormat
from obsspec_gym.envs.sandbox import Sandbox, make_sandbox
from obsspec_gym.envs.scene import judge, prepare
from obsspec_gym.envs.tasks import Demonstrator, Task, get_suite
from obsspec_gym.envs.tasks.family import Step
from obsspec_gym.seeding import derive_seed
from obsspec_gym.types import Sampling

WAVE = 32
"""Episodes a worker has under way at once; a policy decides for all of them in one batch."""

_BLOCK = 16
"""So many tasks in a row are of one suite: as many as the largest has families."""


class Live:
    """An episode under way."""

    def __init__(self, task: Task, sandbox: Sandbox) -> None:
        self.task = task
        self.expert = Demonstrator(task)
        self.transcript: list[Step] = []
        self._sandbox = sandbox
        self._turns: list[Turn] = []
        self._reward = 0.0
        self._submitted = False

    @property
    def over(self) -> bool:
        """Whether it was submitted or has used its turns up."""
        return self._submitted or len(self._turns) >= self.task.max_turns

    def step(self, command: str, taught: bool) -> None:
        """Executes a command."""
        answer = submitted_answer(command)
        seconds = 0.0
        if answer is None:
            result = self._sandbox.run(command, self.task.timeout)
            seconds = result.seconds
            observation = ObservationFormat().format(result, self._sandbox.workdir, self.task.timeout)
        else:
            observation, self._submitted = "[submitted]", True
            self._reward = judge(self._sandbox, self.task, answer).reward
        self.transcript.append((command, observation))
        self._turns.append(Turn(command, observation, taught, seconds))

    def episode(self) -> Episode:
        """What is kept of it."""
        task = self.task
        return Episode(task.id, task.instruction, tuple(self._turns), self._reward, self._submitted)


class Actor(Protocol):
    """Who chooses commands."""

    def __call__(self, episodes: Sequence[Live], wanted: Sequence[str]) -> list[str]:
        """Commands for episodes under way, given what each one's expert would do."""
        ...

    def close(self) -> None:
        """Releases what it owns."""
        ...


class Teacher:
    """Does what the experts say, but makes a mistake with probability ``noise``."""

    def __init__(self, rng: Random, noise: float) -> None:
        self._rng, self._noise = rng, noise

    def __call__(self, episodes: Sequence[Live], wanted: Sequence[str]) -> list[str]:
        """What the experts want, or something else."""
        return [
            mistake(self._rng, command, episode.transcript) if self._rng.random() < self._noise else command
            for episode, command in zip(episodes, wanted, strict=True)
        ]

    def close(self) -> None:
        """Owns nothing."""


class Player:
    """Lets a policy decide with probability ``share`` (the expert otherwise), on the library's own engine.

    Args:
        folder: A trained policy.
        seed: Of the randomness.
        share: How often the policy is the one who acts.
        temperature: 0 is greedy.
    """

    def __init__(self, folder: Path, seed: int, share: float, temperature: float) -> None:
        self._engine = TransformersEngine(folder, driver="inline")
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        stop = (self._tokenizer.token_to_id(END),)
        self._sampling = Sampling(temperature=temperature, max_tokens=LONGEST, stop_token_ids=stop)
        self._seed, self._share = seed, share

    def __call__(self, episodes: Sequence[Live], wanted: Sequence[str]) -> list[str]:
        """Commands for episodes under way; all are generated in one batch."""
        return asyncio.run(self._choose(episodes, wanted))

    async def _choose(self, episodes: Sequence[Live], wanted: Sequence[str]) -> list[str]:
        return list(await asyncio.gather(*map(self._command, episodes, wanted)))

    async def _command(self, live: Live, want: str) -> str:
        seed = derive_seed("record", self._seed, live.task.id, len(live.transcript))
        if Random(seed).random() >= self._share:
            return want
        prompt = dialogue(self._tokenizer, live.task.instruction, live.transcript)
        if len(prompt) >= CONTEXT:
            return want  # nobody learns from an episode that is longer than the context
        completion = await self._engine.submit(prompt, self._sampling, seed)
        return command_of(self._tokenizer, completion.token_ids)

    def close(self) -> None:
        """Releases the engine."""
        self._engine.close()


def wave(tasks: Sequence[Task], actor: Actor, kind: str) -> list[Episode]:
    """Runs some episodes side by side to their ends."""
    with ExitStack() as stack:
        lives = []
        for task in tasks:
            sandbox = make_sandbox(kind)
            stack.callback(sandbox.close)
            sandbox.start()
            prepare(sandbox, task)
            lives.append(Live(task, sandbox))
        while running := [live for live in lives if not live.over]:
            wanted = [live.expert(live.transcript) for live in running]
            for live, command, want in zip(running, actor(running, wanted), wanted, strict=True):
                live.step(command, taught=command == want)
        return [live.episode() for live in lives]


def work_off(args: argparse.Namespace, indices: Sequence[int]) -> list[Episode]:
    """One worker's share: the tasks of some indices, in waves."""
    seed = derive_seed("record", args.seed, indices[0])
    actor: Actor
    if args.policy is None:
        actor = Teacher(Random(seed), args.noise)
    else:
        actor = Player(args.policy, args.seed, args.share, args.temperature)
    suites = [get_suite(suite, work=args.work) for suite in args.suite]
    episodes: list[Episode] = []
    with closing(actor):
        for start in range(0, len(indices), WAVE):
            tasks = [suites[i // _BLOCK % len(suites)].task(i) for i in indices[start : start + WAVE]]
            episodes += wave(tasks, actor, args.sandbox)
    return episodes


def record(args: argparse.Namespace) -> Iterator[Episode]:
    """All episodes, in the order of their tasks."""
    chunk = WAVE * 4
    indices = range(args.first, args.first + args.count)
    shares = [indices[start : start + chunk] for start in range(0, len(indices), chunk)]
    started, done, solved = time.perf_counter(), 0, 0.0
    with ProcessPoolExecutor(args.workers, mp_context=get_context("spawn")) as pool:
        for episodes in pool.map(work_off, [args] * len(shares), shares):
            done, solved = done + len(episodes), solved + sum(episode.reward for episode in episodes)
            seconds = time.perf_counter() - started
            print(
                f"{done}/{args.count} episodes, {solved / done:.3f} solved, {seconds:.0f} s",
                file=sys.stderr,
                flush=True,
            )
            yield from episodes


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Record episodes as training data.")
    parser.add_argument("--suite", nargs="+", default=["basics"])
    parser.add_argument("--first", type=int, required=True, help="first task index")
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--noise", type=float, default=0.1, help="probability of a mistake, per command")
    parser.add_argument("--policy", type=Path, help="let this policy act, with the expert at its side")
    parser.add_argument("--share", type=float, default=1.0, help="how often the policy is the one who acts")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--work", type=float, default=0.05, help="how long slow commands take; 1 is the real thing")
    parser.add_argument("--sandbox", default="bubblewrap")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    # Under its name only when it is whole: a recording that was interrupted is not taken for one that is done.
    part = args.out.with_name(f"{args.out.name}.part")
    save(record(args), part)
    part.replace(args.out)


if __name__ == "__main__":
    main()
