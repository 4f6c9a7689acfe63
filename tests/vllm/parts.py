"""What the vLLM tests share: tiny models on disk, and simulated worlds on the real clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from obsspec_gym.agents.engine.base import Engine
from obsspec_gym.agents.fakes import ScriptedWorldModel
from obsspec_gym.agents.history import History
from obsspec_gym.agents.token_policy import TokenPolicy
from obsspec_gym.seeding import derive_seed
from obsspec_gym.speculation.collector import Collection, collect
from obsspec_gym.speculation.selector import FixedSelector, Off
from obsspec_gym.speculation.simulation import SimulatedSlot
from obsspec_gym.speculation.slot import Episode
from obsspec_gym.types import Action, Completion, EpisodeId, Outcome, Sampling

VOCABULARY, CONTEXT = 264, 512
TURNS = 10


def tiny_model(seed: int = 0, *, tied: bool = True, context: int = CONTEXT) -> Any:
    """A small Qwen3 with random weights, the same for every ``context``, and distributions that depend on it."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=context,
        initializer_range=0.2,
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=None,
    )
    return Qwen3ForCausalLM(config).eval()


def saved(model: Any, directory: Path) -> Path:
    """The directory, with the model in it."""
    model.save_pretrained(directory)
    return directory


def greedy_by_transformers(model: Any, prompt: list[int], tokens: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """The most probable tokens and their logprobs, computed by transformers."""
    import torch

    ids, logprobs = list(prompt), []
    with torch.no_grad():
        for _ in range(tokens):
            logp = torch.log_softmax(model(torch.tensor([ids])).logits[0, -1].double(), dim=-1)
            ids.append(int(logp.argmax()))
            logprobs.append(float(logp.max()))
    return tuple(ids[len(prompt) :]), tuple(logprobs)


async def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Waits for something that is bound to happen."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        await asyncio.sleep(0.01)


def idle(engine: Engine) -> bool:
    """Whether the engine's own scheduler says that nothing runs, nothing waits, and no memory is held."""
    load = engine.load()
    return (load.running, load.waiting, load.cached_tokens) == (0, 0, 0)


def facts(completion: Completion) -> tuple[Any, ...]:
    """What of a completion must be the same."""
    return completion.token_ids, completion.logprobs, completion.finish_reason


@dataclass(frozen=True)
class World:
    """Simulated environments with tools of some milliseconds, addressed by names."""

    seed: int
    tool_scale: float = 0.06
    answers: int = 3

    def outcome(self, episode: EpisodeId, actions: tuple[Action, ...]) -> Outcome:
        tokens = [token for action in actions for token in action]
        name = derive_seed("outcome", self.seed, episode.task_id, *tokens)
        return Outcome(f"answer {name % self.answers}", ends=len(actions) >= TURNS)

    def tool_seconds(self, episode: EpisodeId, turn: int) -> float:
        return self.tool_scale * derive_seed("tool", self.seed, episode.task_id, episode.sample, turn) / 2**63

    def oracle(self, history: History, action: Action) -> Outcome:
        return self.outcome(history.episode, (*(turn.action for turn in history.turns), action))

    def world_model(self) -> ScriptedWorldModel:
        """Right, wrong, slow and raising in turn."""
        fakes = ScriptedWorldModel
        right = [fakes.right(self.oracle, seconds=seconds) for seconds in (0.0, 0.0, 0.01)]
        among = [fakes.among(self.oracle, rank=rank) for rank in (1, 2)]
        wrong = [fakes.wrong(self.oracle), fakes.wrong_end(self.oracle)]
        return fakes.mixed([*right, *among, *wrong, fakes.raising()], seed=self.seed)

    def play(self, engine: Engine, sampling: Sampling, *, turns: int, environments: int, speculate: bool) -> Collection:
        """Episodes of ``TURNS`` turns each, two samples a task."""
        episodes = [Episode(EpisodeId(f"task {i // 2}", i % 2)) for i in range(-(-turns // TURNS))]
        slots = [SimulatedSlot(self.outcome, self.tool_seconds) for _ in range(environments)]
        return collect(
            slots,
            episodes,
            TokenPolicy(engine, sampling),
            self.world_model() if speculate else None,
            FixedSelector(2, 2) if speculate else Off(),
            run_seed=self.seed,
        )


def logprob_difference(left: Collection, right: Collection) -> float:
    """The largest difference between logprobs of the same tokens."""
    others = {trajectory.episode: trajectory for trajectory in right.trajectories}
    return max(
        abs(a - b)
        for trajectory in left.trajectories
        for one, other in zip(trajectory.steps, others[trajectory.episode].steps, strict=True)
        for a, b in zip(one.completion.logprobs, other.completion.logprobs, strict=True)
    )
