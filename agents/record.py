"""Records episodes in real sandboxes: experts with mistakes thrown in, or a policy with an expert at its side.

Example::

    python -m agents.record --first 10000 --count 400 --out build/pair/experts.jsonl
    python -m agents.record --first 20000 --count 200 --policy build/pair/policy --share 0.7 \\
        --out build/pair/mixed.jsonl
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path
from random import Random

from agents.corpus import Episode, Turn, save
from agents.noise import mistake
from obsspec_gym.envs.command import submitted_answer
from obsspec_gym.envs.observation import ObservationFormat
from obsspec_gym.envs.sandbox import Sandbox, make_sandbox
from obsspec_gym.envs.scene import judge, prepare
from obsspec_gym.envs.tasks import Demonstrator, Task, get_suite
from obsspec_gym.envs.tasks.family import Step
from obsspec_gym.seeding import derive_seed

WAVE = 32
"""Episodes a worker has under way at once; a policy decides for all of them in one batch."""


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


Actor = Callable[[Sequence[Live], Sequence[str]], list[str]]
"""Commands for episodes under way, given what each one's expert would do."""


def expert_with_noise(rng: Random, noise: float) -> Actor:
    """Does what the experts say, but makes a mistake with probability ``noise``."""

    def act(episodes: Sequence[Live], wanted: Sequence[str]) -> list[str]:
        return [
            mistake(rng, command, episode.transcript) if rng.random() < noise else command
            for episode, command in zip(episodes, wanted, strict=True)
        ]

    return act


def policy_with_expert(rng: Random, folder: Path, share: float, temperature: float) -> Actor:
    """Lets a policy decide with probability ``share`` (the expert otherwise)."""
    from agents.sampler import Sampler

    sampler = Sampler(folder, seed=rng.randrange(2**31), temperature=temperature)

    def act(episodes: Sequence[Live], wanted: Sequence[str]) -> list[str]:
        sampled = sampler.commands([(live.task.instruction, live.transcript) for live in episodes])
        return [own if rng.random() < share else command for own, command in zip(sampled, wanted, strict=True)]

    return act


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
    rng = Random(derive_seed("record", args.seed, indices[0]))
    if args.policy is None:
        actor = expert_with_noise(rng, args.noise)
    else:
        actor = policy_with_expert(rng, args.policy, args.share, args.temperature)
    suite = get_suite(args.suite, work=args.work)
    episodes: list[Episode] = []
    for start in range(0, len(indices), WAVE):
        tasks = [suite.task(index) for index in indices[start : start + WAVE]]
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
    parser.add_argument("--suite", default="basics")
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
