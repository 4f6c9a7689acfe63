"""A simulated world whose schedules hypothesis draws: engine, environments, world model, all on the virtual clock."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from obsspec_gym.agents.engine.simulated import SimulatedEngine
from obsspec_gym.agents.fakes import ScriptedWorldModel
from obsspec_gym.agents.history import History
from obsspec_gym.agents.token_policy import TokenPolicy
from obsspec_gym.seeding import derive_seed
from obsspec_gym.speculation.clock import run_virtual
from obsspec_gym.speculation.collector import Collection, collect_async
from obsspec_gym.speculation.selector import Selector
from obsspec_gym.speculation.simulation import SimulatedSlot
from obsspec_gym.speculation.slot import Episode
from obsspec_gym.types import Action, EpisodeId, Outcome, Prediction, Sampling


def unit(*parts: int | str) -> float:
    """A number in [0, 1) addressed by names."""
    return derive_seed(*parts) / 2**63


@dataclass
class World:
    """One drawn world.

    Attributes:
        seed: Addresses everything in it.
        episodes: How many episodes.
        environments: How many run at once.
        turns: The longest an episode may get.
        tool_scale: Seconds of a typical tool.
        answers: How many different observations a tool has.
    """

    seed: int = 0
    episodes: int = 4
    environments: int = 2
    turns: int = 6
    tool_scale: float = 0.1
    answers: int = 3
    step_seconds: float = 0.01
    max_running: int = 64
    engine: SimulatedEngine = field(init=False)
    slots: list[SimulatedSlot] = field(init=False)

    def outcome(self, episode: EpisodeId, actions: tuple[Action, ...]) -> Outcome:
        name = derive_seed("outcome", self.seed, episode.task_id, *(token for action in actions for token in action))
        ends = len(actions) >= self.turns or name % 11 == 0
        return Outcome(f"answer {name % self.answers}", ends=ends)

    def tool_seconds(self, episode: EpisodeId, turn: int) -> float:
        return self.tool_scale * unit("tool", self.seed, episode.task_id, episode.sample, turn)

    def oracle(self, history: History, action: Action) -> Outcome:
        return self.outcome(history.episode, (*(turn.action for turn in history.turns), action))

    def run(
        self,
        world_model: object = None,
        selector: Selector | None = None,
        **speculation: object,
    ) -> Collection:
        self.engine = SimulatedEngine(lambda batch: self.step_seconds * (1 + batch / 16), max_running=self.max_running)
        self.slots = [SimulatedSlot(self.outcome, self.tool_seconds) for _ in range(self.environments)]
        policy = TokenPolicy(self.engine, Sampling(max_tokens=12))
        episodes = [Episode(EpisodeId(f"task{i // 2}", i % 2)) for i in range(self.episodes)]
        return run_virtual(
            collect_async(self.slots, episodes, policy, world_model, selector, run_seed=self.seed, **speculation)  # type: ignore[arg-type]
        )

    @property
    def executed(self) -> dict[EpisodeId, list[Action]]:
        return {episode: actions for slot in self.slots for episode, actions in slot.executed.items()}


def moody_world_model(world: World, seconds: float, right: float = 0.6) -> ScriptedWorldModel:
    """Right, wrong about the text, wrong about the end, slow, raising, hanging or nonsensical, by hash."""

    async def behave(history: History, action: Action, n: int, partial: str) -> list[Prediction]:
        mood = unit("mood", world.seed, history.episode.task_id, history.episode.sample, history.turn)
        await asyncio.sleep(seconds * mood)
        truth = world.oracle(history, action)
        wrong = [Prediction(f"answer {i}", ends=not truth.ends, probability=0.1) for i in range(world.answers)]
        if mood < right:
            return [*wrong[: max(0, n - 1) // 2], Prediction(truth.observation, truth.ends, 0.9), *wrong][:n]
        if mood < right + 0.1:
            raise RuntimeError("the world model broke")
        if mood < right + 0.15:
            await asyncio.sleep(1e9)
        if mood < right + 0.2:
            return [Prediction(object()), "nonsense"]  # type: ignore[list-item]
        return wrong[:n]

    return ScriptedWorldModel(behave)
