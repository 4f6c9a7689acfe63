"""Is speculation lossless? Simulated environments on a virtual clock, a real engine, every token compared (I2a).

Each round draws a depth and a breadth in 1..4, a tool-time scale and an order of everything, and runs the same episodes
sequentially and speculatively with a world model that is right, wrong, slow, raising and hanging in turn. The engine is
:class:`~obsspec_gym.agents.engine.transformers.TransformersEngine` over a small random Qwen3, in float64.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from obsspec_gym.agents.engine.transformers import TransformersEngine
from obsspec_gym.agents.fakes import ScriptedWorldModel
from obsspec_gym.agents.history import History
from obsspec_gym.agents.token_policy import TokenPolicy
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.seeding import derive_seed
from obsspec_gym.speculation.clock import VirtualClockLoop
from obsspec_gym.speculation.collector import Collection, collect_async
from obsspec_gym.speculation.comparison import compare
from obsspec_gym.speculation.record import Fate, TurnRecord
from obsspec_gym.speculation.selector import FixedSelector, Off, Selector
from obsspec_gym.speculation.simulation import SimulatedSlot
from obsspec_gym.speculation.slot import Episode
from obsspec_gym.types import Action, EpisodeId, Outcome, Sampling

DEFAULTS: dict[str, Any] = {"turns": 5000, "seed": 0, "dtype": "float64"}
FULL: dict[str, Any] = {"turns": 50_000}

_EPISODES = 16
_TURNS = 10
_STEP_SECONDS = 0.01
_VOCABULARY = 264
_STOP = 258


def run(*, turns: int, seed: int, dtype: str, report: Any) -> dict[str, Any]:
    """Compares until at least ``turns`` turns are compared.

    Returns:
        ``mismatches`` (differing tokens and actions; 0 is the claim), ``turns``, ``tokens``, and the share of the turns
        that were hits, misses, cancels (something was cancelled at the commit) and commits in mid-generation.
    """
    if turns < 1:
        raise InvalidArgumentError(f"turns must be >= 1, got {turns}")
    if dtype not in ("float32", "float64"):
        raise InvalidArgumentError(f"dtype must be float32 or float64, got {dtype!r}")
    tally = _Tally()
    engine = TransformersEngine(
        random_model(dtype),
        dtype="float64" if dtype == "float64" else "float32",
        driver="inline",
        step_seconds=_STEP_SECONDS,
        capacity_tokens=1 << 15,
    )
    try:
        round_number = 0
        while tally.turns < turns:
            tally.add(*_round(engine, seed, round_number))
            round_number += 1
            report(f"{tally.turns} of {turns} turns compared, {tally.mismatches} mismatches")
        load = engine.load()
    finally:
        engine.close()
    return {**tally.to_json(), "rounds": round_number, "dtype": dtype, "left_in_engine": load.running + load.waiting}


def random_model(dtype: str) -> Any:
    """A small Qwen3 with random weights whose distributions depend on their context."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=_VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=1024,
        initializer_range=0.3,
        tie_word_embeddings=True,
    )
    return Qwen3ForCausalLM(config).to(getattr(torch, dtype)).eval()


@dataclass(frozen=True, slots=True)
class _World:
    """One round's simulated environments: outcomes and times addressed by names."""

    seed: int
    tool_scale: float
    answers: int

    def outcome(self, episode: EpisodeId, actions: tuple[Action, ...]) -> Outcome:
        tokens = [token for action in actions for token in action]
        name = derive_seed("outcome", self.seed, episode.task_id, *tokens)
        return Outcome(f"answer {name % self.answers}", ends=len(actions) >= _TURNS or name % 23 == 0)

    def tool_seconds(self, episode: EpisodeId, turn: int) -> float:
        return self.tool_scale * derive_seed("tool", self.seed, episode.task_id, episode.sample, turn) / 2**62

    def oracle(self, history: History, action: Action) -> Outcome:
        return self.outcome(history.episode, (*(turn.action for turn in history.turns), action))

    def world_model(self) -> ScriptedWorldModel:
        """Right twice as often as anything else: hits have to be as frequent as faults."""
        fakes = ScriptedWorldModel
        right = [fakes.right(self.oracle, seconds=seconds) for seconds in (0.0, 0.0, 0.02, 0.05)]
        among = [fakes.among(self.oracle, rank=rank, seconds=0.01) for rank in (1, 2)]
        wrong = [fakes.wrong(self.oracle), fakes.wrong(self.oracle, seconds=0.02), fakes.wrong_end(self.oracle)]
        slow = fakes.right(self.oracle, seconds=self.tool_scale)
        return fakes.mixed([*right, *among, *wrong, slow, fakes.raising(), fakes.hanging()], seed=self.seed)


def _round(engine: TransformersEngine, seed: int, number: int) -> tuple[Collection, Collection]:
    """One draw, run both ways."""

    def draw(name: str, choices: Sequence[Any]) -> Any:
        return choices[derive_seed(name, seed, number) % len(choices)]

    world = _World(derive_seed("round", seed, number), draw("scale", [0.05, 0.1, 0.2]), draw("answers", [2, 3, 5]))
    policy = TokenPolicy(engine, Sampling(max_tokens=draw("length", [8, 12]), stop_token_ids=(_STOP,)))
    depth, breadth = draw("depth", [1, 2, 3, 4]), draw("breadth", [1, 2, 3, 4])
    episodes = [Episode(EpisodeId(f"round {number} task {i // 2}", i % 2)) for i in range(_EPISODES)]

    def collect(model: ScriptedWorldModel | None, selector: Selector) -> Collection:
        slots = [SimulatedSlot(world.outcome, world.tool_seconds) for _ in range(draw("environments", [2, 4, 8]))]
        work = collect_async(slots, episodes, policy, model, selector, run_seed=seed, max_futures=8)
        with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
            return runner.run(work)

    return collect(None, Off()), collect(world.world_model(), FixedSelector(depth, breadth))


class _Tally:
    """Counts what was compared and what kinds of turns there were."""

    def __init__(self) -> None:
        self.turns = self.tokens = self.mismatches = self.followed = 0
        self.kinds: Counter[str] = Counter()
        self.first_mismatch = ""

    def add(self, sequential: Collection, speculative: Collection) -> None:
        comparison = compare(sequential.trajectories, speculative.trajectories)
        self.turns += comparison.turns
        self.tokens += comparison.tokens
        self.mismatches += len(comparison.differences)
        if comparison.differences and not self.first_mismatch:
            self.first_mismatch = str(comparison.differences[0])
        for turn in speculative.turns:
            self.kinds.update(kind for kind, there in _kinds(turn).items() if there)

    def to_json(self) -> dict[str, Any]:
        shares = {
            f"{kind}_share": self.kinds[kind] / max(1, self.turns)
            for kind in ("hit", "miss", "cancel", "mid_generation")
        }
        return {
            "mismatches": self.mismatches,
            "first_mismatch": self.first_mismatch,
            "turns": self.turns,
            "tokens": self.tokens,
            **shares,
        }


def _kinds(turn: TurnRecord) -> dict[str, bool]:
    return {
        "hit": turn.hit,
        "miss": bool(turn.predictions) and not any(prediction.matched for prediction in turn.predictions),
        "cancel": any(future.fate is Fate.CANCELLED for future in turn.futures),
        "mid_generation": turn.hit and turn.generation is not None and turn.generation.end > turn.committed,
    }
