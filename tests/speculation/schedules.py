"""Schedules: what happens when, to whom, drawn turn by turn; and the run of one with every invariant watched.

What the policy should have done is computed beside it without an event loop, an engine or a speculator: completions,
outcomes and updates are functions of names.
"""

from __future__ import annotations

import asyncio
import enum
import hashlib
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from obsspec_gym.agents.engine.simulated import SimulatedEngine
from obsspec_gym.agents.fakes import ScriptedWorldModel
from obsspec_gym.agents.generation import Generation
from obsspec_gym.agents.history import History
from obsspec_gym.agents.token_policy import TokenPolicy, bytes_of
from obsspec_gym.errors import EngineError
from obsspec_gym.seeding import turn_seed
from obsspec_gym.speculation.predictor import Patience
from obsspec_gym.speculation.record import Fate, TurnRecord
from obsspec_gym.speculation.selector import Budget, Candidate, Selector
from obsspec_gym.speculation.speculator import Speculator
from obsspec_gym.types import Action, Completion, EpisodeId, Outcome, Prediction, Priority, Sampling, TokenIds

VERSION_SHARE = 1000
"""A token tells the version of the weights it was sampled with: it is at least this many times the version."""


class Mood(enum.Enum):
    """What the world model does."""

    RIGHT = enum.auto()
    AMONG = enum.auto()
    WRONG = enum.auto()
    WRONG_END = enum.auto()
    TWICE = enum.auto()
    SILENT = enum.auto()
    RAISES = enum.auto()
    HANGS = enum.auto()
    STUBBORN = enum.auto()
    NONSENSE = enum.auto()


class Event(enum.Enum):
    """What happens in the middle of a tool's run."""

    NOTHING = enum.auto()
    UPDATE = enum.auto()
    INTERRUPTION = enum.auto()
    BREAKDOWN = enum.auto()


@dataclass(frozen=True, slots=True)
class Plan:
    """One turn. Times are in milliseconds.

    Attributes:
        tool: How long the tool runs.
        predict: How long the world model takes.
        mood: What it does then.
        depth: The budget's depth.
        breadth: The budget's breadth.
        declined: The selector declines predictions of this rank.
        event: What happens meanwhile.
        at: When, from the tool's start.
    """

    tool: int
    predict: int
    mood: Mood
    depth: int
    breadth: int
    declined: int
    event: Event
    at: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """A whole run.

    Attributes:
        plans: The turns; every episode goes through them from a place of its own.
        episodes: How many.
        environments: How many run at once.
        turns: The longest an episode may get.
        answers: How many different observations a tool has.
        longest: The most tokens of a completion.
        step: Milliseconds a token.
        slowing: Whether a step takes longer the more run; if not, things happen at the very same moment.
        max_running: Of the engine.
        max_futures: Of the speculator.
        refusing: Whether the engine fails every fourth speculative request.
    """

    plans: tuple[Plan, ...]
    episodes: int
    environments: int
    turns: int
    answers: int
    longest: int
    step: int
    slowing: bool
    max_running: int
    max_futures: int
    refusing: bool

    def plan(self, episode: EpisodeId, turn: int) -> Plan:
        return self.plans[(3 * episode.sample + turn) % len(self.plans)]

    def ids(self) -> list[EpisodeId]:
        return [EpisodeId("task", sample) for sample in range(self.episodes)]

    def outcome(self, actions: Sequence[Action]) -> Outcome:
        name = number("outcome", *(token for action in actions for token in action))
        return Outcome(f"answer {name % self.answers}", ends=len(actions) >= self.turns or name % 13 == 0)

    def completion(self, version: int, prompt: Sequence[int], seed: int) -> TokenIds:
        name = number("completion", version, seed, *prompt)
        return tuple(VERSION_SHARE * version + (name >> i) % VERSION_SHARE for i in range(1 + name % self.longest))


def number(*parts: int | str) -> int:
    """A number that stands for names."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=7).digest(), "little")


def first_observation(episode: EpisodeId) -> str:
    return f"go {episode.sample}"


@dataclass(frozen=True, slots=True)
class Done:
    """What was done in one episode.

    Attributes:
        actions: What the environment was given.
        observations: What the policy saw.
        broken: Whether the environment broke.
    """

    actions: tuple[Action, ...]
    observations: tuple[str, ...]
    broken: bool


def reference(schedule: Schedule) -> dict[EpisodeId, Done]:
    """What one environment without speculation does, one episode after the other."""
    version, done = 0, {}
    for episode in schedule.ids():
        actions: list[Action] = []
        observations: list[str] = []
        history = History.start(episode, first_observation(episode), bytes_of(first_observation(episode)))
        ends = broken = False
        while not (ends or broken):
            seed = turn_seed(0, version, episode, history.turn)
            tokens = schedule.completion(version, history.token_ids, seed)
            event = schedule.plan(episode, history.turn).event
            actions.append(tokens)
            version += event is Event.UPDATE
            broken = event is Event.BREAKDOWN
            if not broken:
                outcome = schedule.outcome(actions)
                ends = outcome.ends
                observations.append(outcome.observation)
                history = history.act(tokens, tokens).observe(outcome.observation, bytes_of(outcome.observation))
        done[episode] = Done(tuple(actions), tuple(observations), broken)
    return done


class Engine(SimulatedEngine):
    """Completions of a schedule; tells whom it works for."""

    def __init__(self, schedule: Schedule) -> None:
        slope = 0.125 if schedule.slowing else 0.0
        super().__init__(lambda batch: schedule.step * (1 + slope * batch) / 1000, max_running=schedule.max_running)
        self._schedule = schedule

    def _completion(self, prompt: TokenIds, sampling: Sampling, seed: int) -> TokenIds:
        return self._schedule.completion(self.weights_version, prompt, seed)

    def submit(self, prompt_ids: Sequence[int], sampling: Sampling, seed: int, **options: Any) -> Generation:
        speculative = options.get("priority") is Priority.SPECULATIVE
        if self._schedule.refusing and speculative and number("refused", *prompt_ids) % 4 == 0:
            refused: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
            refused.set_exception(EngineError("refused"))
            return Generation(refused)
        return super().submit(prompt_ids, sampling, seed, **options)

    def works_for(self) -> set[TokenIds]:
        return {request.prompt for request in self._running + self._waiting}


class DrawnSelector(Selector):
    """Budgets of a schedule."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self.declined: set[str] = set()

    @property
    def depth(self) -> int:
        return max(plan.depth for plan in self._schedule.plans)

    def budget(self, acted: History) -> Budget:
        plan = self._schedule.plan(acted.episode, acted.turn - 1)
        return Budget(plan.depth, plan.breadth, f"drawn {plan.depth}x{plan.breadth}")

    def chance(self, candidate: Candidate) -> float:
        if candidate.rank != self._schedule.plan(candidate.acted.episode, candidate.acted.turn - 1).declined:
            return super().chance(candidate)
        observation = candidate.prediction.observation
        tokens = () if candidate.prediction.ends else bytes_of(observation)
        self.declined.add(candidate.acted.observe(observation, tokens).key[:8].hex())
        return 0.0


def world_model(schedule: Schedule) -> ScriptedWorldModel:
    """The world model of a schedule."""

    async def behave(history: History, action: Action, n: int, partial: str) -> list[Prediction]:
        plan = schedule.plan(history.episode, history.turn)
        await asyncio.sleep(plan.predict / 1000)
        truth = schedule.outcome([*(turn.action for turn in history.turns), action])
        right = Prediction(truth.observation, truth.ends, 0.9)
        wrong = [Prediction(f"answer {schedule.answers + i}", truth.ends, 0.1) for i in range(n)]
        match plan.mood:
            case Mood.RIGHT:
                return [right, *wrong][:n]
            case Mood.AMONG:
                return [wrong[0], right, *wrong[1:]][:n]
            case Mood.WRONG:
                return wrong
            case Mood.WRONG_END:
                return [Prediction(truth.observation, not truth.ends), *wrong][:n]
            case Mood.TWICE:
                return [right, right, *wrong, *wrong]
            case Mood.SILENT:
                return []
            case Mood.RAISES:
                raise RuntimeError("the world model broke")
            case Mood.HANGS:
                await asyncio.Event().wait()
            case Mood.STUBBORN:
                await _ignoring_cancellation()
            case Mood.NONSENSE:
                return [Prediction(object()), right, "nonsense"]  # type: ignore[list-item]
        return []

    return ScriptedWorldModel(behave)


async def _ignoring_cancellation() -> None:
    for _ in range(3):
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            continue


class Watched:
    """The run of a schedule with speculation; says at every step whether an invariant is broken."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.engine = Engine(schedule)
        self.selector = DrawnSelector(schedule)
        self.speculator = Speculator(
            TokenPolicy(self.engine, Sampling()),
            world_model(schedule),
            self.selector,
            patience=Patience(deadline=0.2, failures=3, pause=0.05),
            max_futures=schedule.max_futures,
            on_turn=self._decided,
        )
        self.records: list[TurnRecord] = []
        self.updates = self.interruptions = self.most_futures = 0
        self._done: dict[EpisodeId, Done] = {}
        self._actions: dict[EpisodeId, list[Action]] = defaultdict(list)
        self._oldest: dict[EpisodeId, int] = {}
        self._hit: dict[EpisodeId, bool] = {}

    async def run(self) -> dict[EpisodeId, Done]:
        """Plays every episode; afterwards nothing is left, and nothing begins again."""
        queue = deque(self.schedule.ids())

        async def work() -> None:
            while queue:
                episode = queue.popleft()
                self._done[episode] = await self._play(episode)

        await asyncio.gather(*[work() for _ in range(self.schedule.environments)])
        assert not self.engine.works_for()  # I5
        await self.speculator.close()
        submitted = self.engine.counters.submitted
        await asyncio.sleep(1000)
        assert self.engine.counters.submitted == submitted
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return self._done

    async def _play(self, episode: EpisodeId) -> Done:
        observations: list[str] = []
        self._oldest[episode], self._hit[episode] = self.engine.weights_version, False
        pending = self.speculator.start(episode, first_observation(episode))
        while pending is not None:
            action = await pending
            assert all(token // VERSION_SHARE >= self._oldest[episode] for token in action)  # I7
            assert pending.hit is self._hit[episode]  # I6
            try:
                observation, pending = await self._turn(pending.history, action)
            except ConnectionError:
                self._watch()
                return Done(tuple(self._actions[episode]), tuple(observations), broken=True)
            observations.append(observation)
        return Done(tuple(self._actions[episode]), tuple(observations), broken=False)

    async def _turn(self, history: History, action: Action) -> Any:
        """One turn; if it is interrupted the same tool goes on, and the turn is begun anew."""
        plan = self.schedule.plan(history.episode, history.turn)
        tool = self._tool(history.episode, action, plan)
        if plan.event is not Event.INTERRUPTION:
            return await self.speculator.turn(history, action, execute=tool)
        running = asyncio.ensure_future(tool)
        attempt = asyncio.ensure_future(self.speculator.turn(history, action, execute=asyncio.shield(running)))
        await asyncio.wait({attempt}, timeout=plan.at / 1000)
        if attempt.done():
            return attempt.result()
        attempt.cancel()
        await asyncio.wait({attempt})
        assert attempt.cancelled()
        self.interruptions += 1
        self._watch()
        return await self.speculator.turn(history, action, execute=running)

    async def _tool(self, episode: EpisodeId, action: Action, plan: Plan) -> Outcome:
        self._actions[episode].append(action)
        actions = tuple(self._actions[episode])
        if plan.event is Event.UPDATE:
            await asyncio.sleep(min(plan.at, plan.tool) / 1000)
            self._update()
            await asyncio.sleep(max(0, plan.tool - plan.at) / 1000)
        else:
            await asyncio.sleep(plan.tool / 1000)
        if plan.event is Event.BREAKDOWN:
            raise ConnectionError("the environment broke")
        return self.schedule.outcome(actions)

    def _update(self) -> None:
        self.updates += 1
        self.speculator.update_weights(self.engine.update_weights())
        for futures in self._futures():
            assert len(futures) == 0  # I7
        self._watch()

    def _decided(self, record: TurnRecord) -> None:
        self.records.append(record)
        self._oldest[record.episode] = self.engine.weights_version
        assert all(future.fate is not Fate.KEPT for future in record.futures)
        assert record.hidden_seconds <= record.hidable_seconds + 1e-9
        came_true = [prediction.key for prediction in record.predictions if prediction.matched]
        assert len(came_true) <= 1
        assert not record.predictions or record.depth > 0 or record.hit
        generated = bool(came_true) and came_true[0] not in self.selector.declined
        self._hit[record.episode] = generated and not record.ends and not self._refused(record, came_true[0])
        self._watch()

    def _refused(self, record: TurnRecord, key: str) -> bool:
        """Whether the engine had failed the future that came true: that is a miss like any other."""
        futures = self.speculator.futures(record.episode)
        return self.schedule.refusing and (futures is None or futures.root.history.key[:8].hex() != key)

    def _futures(self) -> Iterator[Any]:
        for episode in self.schedule.ids():
            futures = self.speculator.futures(episode)
            if futures is not None:
                yield futures

    def _watch(self) -> None:
        """The engine works for histories that may still come true, and for nothing else (I5)."""
        possible: set[TokenIds] = set()
        for futures in self._futures():
            alive = list(futures.root.walk())
            assert len(futures) == len(alive) - 1 <= self.schedule.max_futures
            self.most_futures = max(self.most_futures, len(futures))
            possible |= {future.history.token_ids for future in alive}
        assert self.engine.works_for() <= possible
