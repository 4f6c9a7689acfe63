"""The engines side by side, on one model: speed at 1, 8 and 32 requests, and rollouts with and without speculation.

The model is the shipped policy, in float32. Requests have random prompts and random completions of fixed length, so all
engines do the same work. Rollouts are of that policy in simulated environments, whose answers are pure functions of
what was done, so that any difference between the sequential and the speculative ones is the engine's or ours.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any

from obsspec_gym.agents.engine.base import Engine
from obsspec_gym.agents.fakes import ScriptedWorldModel
from obsspec_gym.agents.lm_policy import load_policy
from obsspec_gym.agents.loading import model_directory
from obsspec_gym.errors import InvalidArgumentError, MissingExtraError
from obsspec_gym.seeding import derive_seed
from obsspec_gym.speculation.collector import Collection, collect_async
from obsspec_gym.speculation.comparison import compare
from obsspec_gym.speculation.metrics import Spread, measure
from obsspec_gym.speculation.selector import FixedSelector, Off, Selector
from obsspec_gym.speculation.simulation import SimulatedSlot, oracle_of
from obsspec_gym.speculation.slot import Episode
from obsspec_gym.speculation.trajectory import Trajectory
from obsspec_gym.types import Action, EpisodeId, Outcome, Sampling

DEFAULTS: dict[str, Any] = {
    "requests": "1,8,32",
    "prompt": 64,
    "tokens": 64,
    "repeats": 3,
    "episodes": 14,
    "seed": 0,
    "servers": "",
}
FULL: dict[str, Any] = {"tokens": 128, "repeats": 7, "episodes": 64}

_TURNS = 8
_ENVIRONMENTS = 8
_TOOL_SECONDS = (0.02, 0.2)
_WORDS = 256
"""Prompts are of token ids below this, which every vocabulary has."""


def run(
    *,
    requests: str,
    prompt: int,
    tokens: int,
    repeats: int,
    episodes: int,
    seed: int,
    servers: str,
    report: Callable[[str], None],
) -> dict[str, Any]:
    """Medians over repeats in which the engines take turns.

    Args:
        requests: How many at once, separated by commas.
        prompt: Tokens of a prompt.
        tokens: Tokens of a completion.
        repeats: How often each is measured.
        episodes: Of a rollout, in each repeat.
        seed: Of prompts, completions and environments.
        servers: URLs of servers of the same model to measure as well, separated by commas.
        report: Is told about progress.

    Returns:
        For each engine, under its name: ``tokens_per_second`` and ``first_token_seconds`` (until a completion of one
        token is there) by number of requests; and of the rollouts ``mismatches`` (episodes that differ),
        ``logprob_difference`` (the largest), ``turns`` compared, ``hit_rate``, ``saved`` (the share of the sequential
        time) and the seconds of both ways. An engine that is not installed says so under ``missing``.
    """
    counts = _counts(requests)
    if min(prompt, tokens, repeats, episodes) < 1:
        raise InvalidArgumentError("prompt, tokens, repeats and episodes must be >= 1")
    urls = [url for url in servers.split(",") if url]
    with ExitStack() as stack:
        engines, missing = _start(urls, stack)
        rows = {name: _Row() for name in engines}
        for engine in engines.values():
            asyncio.run(_complete(engine, _prompts(1, prompt, seed, "warm up"), tokens))
        for repeat in range(repeats):
            for name, engine in engines.items():
                report(f"repeat {repeat + 1} of {repeats}, {name}: speed")
                for count in counts:
                    rows[name].speed(engine, _prompts(count, prompt, seed, f"{repeat}"), tokens)
                report(f"repeat {repeat + 1} of {repeats}, {name}: rollouts")
                rows[name].rollouts(engine, _World(derive_seed("world", seed, repeat)), episodes)
    measured: dict[str, Any] = {name: row.to_json() for name, row in rows.items()}
    measured.update({name: {"missing": reason} for name, reason in missing.items()})
    return {**measured, "engines": sorted(engines), "repeats": repeats, "prompt": prompt, "tokens": tokens}


def _counts(requests: str) -> list[int]:
    try:
        counts = [int(word) for word in requests.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1:
        raise InvalidArgumentError(f"requests takes numbers >= 1 separated by commas, got {requests!r}")
    return counts


def _start(urls: Sequence[str], stack: ExitStack) -> tuple[dict[str, Engine], dict[str, str]]:
    """The engines there are, and why there are no more."""
    from obsspec_gym.agents.engine.transformers import TransformersEngine

    directory = model_directory("shipped", "policy")
    engines: dict[str, Engine] = {"transformers": stack.enter_context(TransformersEngine(directory, driver="process"))}
    missing: dict[str, str] = {}
    try:
        from obsspec_gym.agents.engine.vllm import VLLMEngine

        engines["vllm"] = stack.enter_context(VLLMEngine(directory, dtype="float32"))
    except MissingExtraError as error:
        missing["vllm"] = str(error)
    if urls:
        from obsspec_gym.agents.engine.server import ServerEngine

        engines["server"] = stack.enter_context(ServerEngine(urls))
    return engines, missing


@dataclass
class _Row:
    """What was measured of one engine."""

    tokens_per_second: dict[int, list[float]] = field(default_factory=dict)
    first_token: dict[int, list[float]] = field(default_factory=dict)
    sequential: list[float] = field(default_factory=list)
    speculative: list[float] = field(default_factory=list)
    hit_rates: list[float] = field(default_factory=list)
    mismatches: int = 0
    turns: int = 0
    logprob_difference: float = 0.0

    def speed(self, engine: Engine, prompts: Sequence[Sequence[int]], tokens: int) -> None:
        """That many requests at once, of one token and of many."""
        first = asyncio.run(_complete(engine, prompts, 1))
        whole = asyncio.run(_complete(engine, [[*prompt, 1] for prompt in prompts], tokens))
        self.first_token.setdefault(len(prompts), []).extend(first)
        self.tokens_per_second.setdefault(len(prompts), []).append(len(prompts) * tokens / max(whole))

    def rollouts(self, engine: Engine, world: _World, episodes: int) -> None:
        """The same episodes both ways."""
        sequential = world.collect(engine, episodes, None, Off())
        speculative = world.collect(engine, episodes, world.world_model(), FixedSelector(2, 1))
        comparison = compare(sequential.trajectories, speculative.trajectories)
        self.mismatches += len(comparison.differences)
        self.turns += comparison.turns
        self.sequential.append(sequential.seconds)
        self.speculative.append(speculative.seconds)
        self.hit_rates.append(measure(speculative).hit_rate or 0.0)
        largest = max(_logprob_differences(sequential.trajectories, speculative.trajectories), default=0.0)
        self.logprob_difference = max(self.logprob_difference, largest)

    def to_json(self) -> dict[str, Any]:
        saved = [1 - fast / slow for slow, fast in zip(self.sequential, self.speculative, strict=True)]
        spreads = {
            "saved": Spread.of(saved),
            "sequential_seconds": Spread.of(self.sequential),
            "speculative_seconds": Spread.of(self.speculative),
        }
        return {
            "tokens_per_second": {
                str(count): Spread.of(found).median for count, found in self.tokens_per_second.items()
            },
            "first_token_seconds": {str(count): Spread.of(found).median for count, found in self.first_token.items()},
            "mismatches": self.mismatches,
            "logprob_difference": self.logprob_difference,
            "turns": self.turns,
            "hit_rate": Spread.of(self.hit_rates).median,
            **{name: spread.median for name, spread in spreads.items()},
            "spread": {
                **{name: asdict(spread) for name, spread in spreads.items()},
                "tokens_per_second": {str(n): asdict(Spread.of(found)) for n, found in self.tokens_per_second.items()},
            },
        }


def _prompts(count: int, length: int, seed: int, name: str) -> list[list[int]]:
    drawn = random.Random(derive_seed("prompts", seed, name, count))
    return [[drawn.randrange(_WORDS) for _ in range(length)] for _ in range(count)]


async def _complete(engine: Engine, prompts: Sequence[Sequence[int]], tokens: int) -> list[float]:
    """Seconds until each of the completions is there, all asked for at once."""
    began = time.perf_counter()

    async def one(number: int, prompt: Sequence[int]) -> float:
        await engine.submit(prompt, Sampling(max_tokens=tokens), seed=number)
        return time.perf_counter() - began

    return await asyncio.gather(*[one(number, prompt) for number, prompt in enumerate(prompts)])


@dataclass(frozen=True, slots=True)
class _World:
    """Simulated environments: outcomes and times addressed by names."""

    seed: int

    def outcome(self, episode: EpisodeId, actions: tuple[Action, ...]) -> Outcome:
        name = derive_seed("outcome", self.seed, episode.task_id, *map(str, actions))
        return Outcome(f"answer {name % 100}\n[exit 0] ~", ends=len(actions) >= _TURNS)

    def tool_seconds(self, episode: EpisodeId, turn: int) -> float:
        shortest, longest = _TOOL_SECONDS
        drawn = derive_seed("tool", self.seed, episode.task_id, episode.sample, turn) / 2**63
        return shortest + (longest - shortest) * drawn

    def world_model(self) -> ScriptedWorldModel:
        """Right two times out of three."""
        oracle, fakes = oracle_of(self.outcome), ScriptedWorldModel
        right = fakes.right(oracle, seconds=0.005)
        return fakes.mixed([right, right, fakes.wrong(oracle, seconds=0.005)], seed=self.seed)

    def collect(
        self, engine: Engine, episodes: int, model: ScriptedWorldModel | None, selector: Selector
    ) -> Collection:
        """Episodes of the shipped policy, two of each task."""
        policy = load_policy("shipped", engine=engine, sampling=Sampling(max_tokens=32))
        slots = [
            SimulatedSlot(self.outcome, self.tool_seconds, lambda episode: f"Say what {episode.task_id} is.")
            for _ in range(_ENVIRONMENTS)
        ]
        plan = [Episode(EpisodeId(f"task {number // 2}", number % 2)) for number in range(episodes)]
        return asyncio.run(collect_async(slots, plan, policy, model, selector, run_seed=self.seed))


def _logprob_differences(left: Sequence[Trajectory], right: Sequence[Trajectory]) -> Iterator[float]:
    """Between the logprobs of tokens that are the same in both."""
    for one, other in zip(left, right, strict=True):
        for a, b in zip(one.steps, other.steps, strict=False):
            if a.completion.token_ids != b.completion.token_ids:
                break
            yield from (abs(x - y) for x, y in zip(a.completion.logprobs, b.completion.logprobs, strict=True))
