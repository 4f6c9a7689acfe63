"""Whole collections on the virtual clock: the very code of real ones, on a simulated server, tools and world model.

result = simulate(get_profile("paper-8b"), Setting(match_rate=0.664, depth=1, breadth=1), rollouts=256)
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from obsspec_gym.agents.engine.base import EngineLoad
from obsspec_gym.agents.engine.serving import ServingCounters, ServingEngine, tokens
from obsspec_gym.agents.generation import Generation
from obsspec_gym.agents.history import History
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.seeding import derive_seed
from obsspec_gym.speculation.adaptive import AdaptiveSelector
from obsspec_gym.speculation.clock import run_virtual
from obsspec_gym.speculation.collector import Collection, collect_async
from obsspec_gym.speculation.metrics import Measures, measure
from obsspec_gym.speculation.profiles import Profile, uniform
from obsspec_gym.speculation.selector import FixedSelector, Off, Selector
from obsspec_gym.speculation.simulation import SimulatedSlot
from obsspec_gym.speculation.slot import Episode
from obsspec_gym.types import (
    Action,
    Completion,
    EpisodeId,
    Observation,
    Outcome,
    Prediction,
    Priority,
    TokenIds,
    Transition,
)

ALTERNATIVE = 0.25
"""Assumed: a further prediction is right for this share of what the ones before it left."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is varied between simulations.

    Attributes:
        match_rate: Probability that the first prediction of an outcome is exactly right.
        prediction_seconds: Seconds of a prediction; ``None`` for a world model's decoding steps as in the profile.
        depth: Observations ahead; 0 for the sequential baseline.
        breadth: Alternatives at each level.
        alternative: See :data:`ALTERNATIVE`.
        adaptive: Whether depth and breadth are bounds, up to which the adaptive selector chooses.

    Raises:
        InvalidArgumentError: If one is out of range.
    """

    match_rate: float = 0.664
    prediction_seconds: float | None = None
    depth: int = 1
    breadth: int = 1
    alternative: float = ALTERNATIVE
    adaptive: bool = False

    def __post_init__(self) -> None:
        for name, value in (("match_rate", self.match_rate), ("alternative", self.alternative)):
            if not 0 <= value <= 1:
                raise InvalidArgumentError(f"{name} must be in [0, 1], got {value}")
        if self.prediction_seconds is not None and not self.prediction_seconds >= 0:
            raise InvalidArgumentError(f"prediction_seconds must be >= 0, got {self.prediction_seconds}")
        self.selector()

    def selector(self) -> Selector:
        """The selector of this depth and breadth."""
        if self.adaptive:
            return AdaptiveSelector(max(1, self.depth), self.breadth)
        return FixedSelector(self.depth, self.breadth) if self.depth else Off()

    def chance(self, place: int) -> float:
        """The probability that the prediction of a place, from 0, is the right one: all that it says of itself."""
        left = 1 - self.match_rate
        return self.match_rate if place == 0 else left * self.alternative * (1 - self.alternative) ** (place - 1)


class World:
    """Episodes of a profile: everything about them is a function of names and the seed.

    Args:
        profile: The distributions.
        seed: Draws another set of episodes.
    """

    def __init__(self, profile: Profile, seed: int = 0) -> None:
        self.profile = profile
        self.seed = seed

    def turns(self, episode: EpisodeId) -> int:
        """How many turns an episode has."""
        return max(1, round(self.profile.turns.at(self._uniform("turns", episode))))

    def outcome(self, episode: EpisodeId, turn: int) -> str:
        """The observation that a turn brings."""
        return f"{episode.task_id} {episode.sample} {turn}"

    def after(self, episode: EpisodeId, actions: tuple[Action, ...]) -> Outcome:
        """What the last of some actions brings."""
        return Outcome(self.outcome(episode, len(actions) - 1), ends=len(actions) >= self.turns(episode))

    def seconds(self, episode: EpisodeId, turn: int) -> float:
        """How long a turn's tool takes, with the way there."""
        names = (self.seed, episode.task_id, episode.sample, turn)
        way = self.profile.round_trip.at(self._uniform("way", episode, turn))
        return self.profile.tool.draw("tool", *names) + way

    def observation_tokens(self, observation: str) -> int:
        """The length of an observation, right or wrong."""
        return max(1, round(self.profile.observation.at(uniform("observation", self.seed, observation))))

    def output_tokens(self, history: History, seed: int) -> int:
        """The length of the completion after a history."""
        quantile = uniform("output", seed, history.key.hex())
        return max(1, round(self.profile.output.at(quantile)))

    def _uniform(self, what: str, episode: EpisodeId, turn: int = 0) -> float:
        return uniform(what, self.seed, episode.task_id, episode.sample, turn)


class ServedPolicy:
    """A policy whose completions are lengths, from a simulated server.

    Args:
        engine: The server.
        world: Says how long completions and observations are.
    """

    addressed_noise = True

    def __init__(self, engine: ServingEngine, world: World) -> None:
        self._engine = engine
        self._world = world

    def generate(
        self, history: History, *, seed: int, priority: Priority = Priority.COMMITTED, draft: Sequence[int] = ()
    ) -> Generation:
        """Asks the server."""
        return self._engine.submit(history, self._world.output_tokens(history, seed), priority=priority)

    def parse(self, completion: Completion) -> Action:
        """The completion's length stands for the action."""
        return len(completion.token_ids)

    def encode_action(self, action: Action) -> TokenIds:
        """As many tokens as the action says."""
        return tokens(int(action))

    def load(self) -> EngineLoad:
        """How busy the server is."""
        return self._engine.load()

    def encode_observation(self, history: History | None, observation: Observation) -> TokenIds:
        """As many tokens as the observation is long."""
        if history is None:
            return tokens(self._world.profile.first_prompt)
        return tokens(self._world.observation_tokens(observation))


class WorldModelOfWorld:
    """A world model that is right as often, and as late, as it is told to be.

    Args:
        world: What it predicts.
        setting: How well.
    """

    def __init__(self, world: World, setting: Setting) -> None:
        self._world = world
        self._setting = setting

    async def predict(self, history: History, action: Action, n: int, partial: str = "") -> list[Prediction]:
        """``n`` predictions; the truth is among them or not, and first or not, by chance."""
        world, setting, turn = self._world, self._setting, history.turn
        truth = world.outcome(history.episode, turn)
        right = self._place(history.episode, turn)
        seconds = setting.prediction_seconds
        if seconds is None:
            seconds = world.profile.world_model_step * world.observation_tokens(truth)
        await asyncio.sleep(seconds)
        ends = turn + 1 >= world.turns(history.episode)
        wrong = f"not {history.key.hex()}"
        said = [truth if place == right else f"{wrong} {place}" for place in range(n)]
        return [Prediction(observation, ends, setting.chance(place)) for place, observation in enumerate(said)]

    def _place(self, episode: EpisodeId, turn: int) -> int:
        """Which of the predictions is the right one."""
        chance = uniform("match", self._world.seed, episode.task_id, episode.sample, turn)
        setting, place, reached = self._setting, 0, self._setting.match_rate
        while chance >= reached and place < 64:
            reached += (1 - reached) * setting.alternative
            place += 1
        return place

    def observe(self, transition: Transition) -> None:
        """Learns nothing."""

    def close(self) -> None:
        """Owns nothing."""


@dataclass(frozen=True)
class Simulated:
    """What a simulation came to.

    Attributes:
        measures: As of a real collection; all seconds are virtual.
        server: What the server did.
    """

    measures: Measures
    server: ServingCounters


def simulate(profile: Profile, setting: Setting, *, rollouts: int, envs: int | None = None, seed: int = 0) -> Simulated:
    """Runs rollouts on one simulated server.

    Args:
        profile: What is taken as given.
        setting: What is varied.
        rollouts: Episodes in all.
        envs: Episodes at a time; the profile's by default.
        seed: Draws another set of episodes; the same seed gives the same episodes in every setting.

    Raises:
        InvalidArgumentError: If there are no rollouts or no environments.
    """
    envs = profile.rollouts if envs is None else envs
    if rollouts < 1 or envs < 1:
        raise InvalidArgumentError(f"rollouts and envs must be at least 1, got {rollouts} and {envs}")
    return run_virtual(_run(profile, setting, rollouts, envs, seed))


async def _run(profile: Profile, setting: Setting, rollouts: int, envs: int, seed: int) -> Simulated:
    world, engine = World(profile, seed), ServingEngine(profile.speed)
    episodes = [Episode(EpisodeId(f"{index // profile.group}", index % profile.group)) for index in range(rollouts)]
    slots = [SimulatedSlot(world.after, world.seconds) for _ in range(min(envs, rollouts))]
    try:
        collection: Collection = await collect_async(
            slots,
            episodes,
            ServedPolicy(engine, world),
            WorldModelOfWorld(world, setting) if setting.depth else None,
            setting.selector(),
            run_seed=derive_seed("simulate", seed),
        )
    finally:
        engine.close()
    return Simulated(measure(collection), engine.counters)
