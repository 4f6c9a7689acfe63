"""What a turn costs us in CPU: simulated environments on one event loop, beside a bare skeleton of the same tasks.

Tools, predictions and generations are timers on a virtual clock, so nothing waits and all the CPU that is used is that
of the loop, of the timers, and ours. The skeleton is what anybody would write to run a tool while a prediction is asked
for and a generation begun on it: no histories, no keys, no tree, no records, no seeds. Ours minus the skeleton is our
own.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from obsspec_gym.agents.generation import Generation
from obsspec_gym.agents.history import History
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.speculation.clock import VirtualClockLoop
from obsspec_gym.speculation.metrics import Spread
from obsspec_gym.speculation.selector import FixedSelector
from obsspec_gym.speculation.speculator import Speculator
from obsspec_gym.types import Action, Completion, EpisodeId, Observation, Prediction, Priority, TokenIds, Transition

DEFAULTS: dict[str, Any] = {"envs": "1,64,1024,4096", "turns": 8, "steps": 2048, "repeats": 5}
FULL: dict[str, Any] = {"turns": 16, "steps": 8192, "repeats": 9}

_TOOL, _PREDICTION, _GENERATION = 1.0, 0.2, 0.5
_WARM_UP = 2
"""Turns of an episode before the measured ones."""

_MATCHES = 3
"""Two predictions of this many are right."""

_Request = tuple[asyncio.Future[Completion], asyncio.TimerHandle]

_ACTION_TOKENS: TokenIds = tuple(range(1000, 1024))
_OBSERVATION_TOKENS: TokenIds = tuple(range(2000, 2064))
_TEXT = "total 24\n" + "-rw-r--r-- 1 agent agent  118 Jan  1 00:00 notes.txt\n" * 3


def run(*, envs: str, turns: int, steps: int, repeats: int, report: Callable[[str], None]) -> dict[str, Any]:
    """Medians over interleaved repeats; CPU is that of the process.

    Args:
        envs: How many environments, from the fewest to the most, separated by commas.
        turns: Measured turns of an episode.
        steps: Turns in all at least, of each measurement.
        repeats: How often each is measured.
        report: Is told about progress.

    Returns:
        ``microseconds_per_step``, our own at its largest over the numbers of environments; ``growth``, our own with
        the most over that with the fewest; and under ``envs`` ours, the skeleton's and our own for each number, with
        spreads.
    """
    counts = _counts(envs)
    if turns < 2 or steps < 1 or repeats < 1:
        raise InvalidArgumentError(f"turns must be >= 2, steps and repeats >= 1, got {turns}, {steps} and {repeats}")
    measured: dict[int, dict[str, list[float]]] = {
        count: {"ours": [], "skeleton": [], "own": [], "collecting": []} for count in counts
    }
    for kind in (_Ours, _Skeleton):
        _microseconds(kind, 1, turns, min(64, steps))  # what is done once is in no measurement
    for repeat in range(repeats):
        for count in counts:
            ours, collecting = _microseconds(_Ours, count, turns, steps)
            skeleton, collecting_bare = _microseconds(_Skeleton, count, turns, steps)
            own = ours - skeleton
            rows = {"ours": ours, "skeleton": skeleton, "own": own, "collecting": collecting - collecting_bare}
            for name, value in rows.items():
                measured[count][name].append(value)
            report(f"repeat {repeat + 1} of {repeats}, {count} environments: {own:.0f} microseconds a step")
    spreads = {count: {name: Spread.of(values) for name, values in rows.items()} for count, rows in measured.items()}
    medians = [spreads[count]["own"].median for count in counts]
    without = [spreads[count]["own"].median - spreads[count]["collecting"].median for count in counts]
    return {
        "microseconds_per_step": max(medians),
        "growth": medians[-1] / medians[0],
        "growth_without_collecting": without[-1] / without[0],
        "turns": turns,
        "repeats": repeats,
        "envs": {
            str(count): {
                **{name: spread.median for name, spread in rows.items()},
                "spread": {name: asdict(spread) for name, spread in rows.items()},
            }
            for count, rows in spreads.items()
        },
    }


def _counts(envs: str) -> list[int]:
    try:
        counts = [int(word) for word in envs.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1 or counts != sorted(set(counts)):
        raise InvalidArgumentError(f"envs takes ascending numbers >= 1 separated by commas, got {envs!r}")
    return counts


def _microseconds(kind: type[_Ours] | type[_Skeleton], envs: int, turns: int, steps: int) -> tuple[float, float]:
    """CPU of a step of environments that are in full swing: ``envs`` at a time, as many episodes as are needed.

    Returns:
        All of it, and that of the garbage collector.
    """
    rounds = max(1, -(-steps // (envs * turns)))

    async def everyone() -> tuple[float, float]:
        runner, spent, collecting = kind(turns), 0.0, 0.0
        for number in range(rounds):
            gate = _Gate(envs)
            episodes = [asyncio.ensure_future(runner.play(number * envs + env, gate)) for env in range(envs)]
            await gate.all_there()
            # Beginning so many at once is another matter, and so is the garbage of that.
            gc.collect()
            with _Collector() as collector:
                began = time.process_time()
                gate.open()
                await asyncio.gather(*episodes)
                spent += time.process_time() - began
            collecting += collector.seconds
        await runner.close()
        return spent, collecting

    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        spent, collecting = runner.run(everyone())
    return 1e6 * spent / (rounds * envs * turns), 1e6 * collecting / (rounds * envs * turns)


class _Collector:
    """Sums up the CPU seconds of the garbage collector while it is entered."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._began = 0.0

    def __enter__(self) -> _Collector:
        gc.callbacks.append(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        gc.callbacks.remove(self._note)

    def _note(self, phase: str, info: dict[str, int]) -> None:
        now = time.process_time()
        if phase == "start":
            self._began = now
        else:
            self.seconds += now - self._began


class _Gate:
    """Where everybody waits until all are there and it is opened."""

    def __init__(self, count: int) -> None:
        self._missing = count
        self._full = asyncio.Event()
        self._opened = asyncio.Event()

    async def all_there(self) -> None:
        await self._full.wait()

    def open(self) -> None:
        self._opened.set()

    async def pass_through(self) -> None:
        self._missing -= 1
        if not self._missing:
            self._full.set()
        await self._opened.wait()


def _observation(env: int, turn: int) -> str:
    return f"{_TEXT}[exit 0] ~/task{env}/{turn}"


def _predicted(env: int, turn: int) -> str:
    return _observation(env, turn) if (env + turn) % _MATCHES else "something else"


def _seconds(seconds: float, env: int, turn: int) -> float:
    """Half to one and a half of it: all at the very same time would be a special case."""
    return seconds * (0.5 + (env * 7919 + turn * 31337) % 99991 / 99991)


async def _tool(env: int, turn: int) -> str:
    await asyncio.sleep(_seconds(_TOOL, env, turn))
    return _observation(env, turn)


def _settle(future: asyncio.Future[Completion], completion: Completion) -> None:
    if not future.done():
        future.set_result(completion)


class _TimerPolicy:
    """Generates by a timer."""

    addressed_noise = True

    def generate(
        self,
        history: History,
        *,
        seed: int,
        priority: Priority = Priority.COMMITTED,
        draft: Any = (),
    ) -> Generation:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Completion] = loop.create_future()
        seconds = _seconds(_GENERATION, history.episode.sample, history.turn)
        timer = loop.call_later(seconds, _settle, future, Completion(_ACTION_TOKENS, (0.0,) * len(_ACTION_TOKENS)))
        return Generation(future, cancel=timer.cancel)

    def parse(self, completion: Completion) -> Action:
        return "ls -la"

    def encode_action(self, action: Action) -> TokenIds:
        return _ACTION_TOKENS

    def encode_observation(self, history: History | None, observation: Observation) -> TokenIds:
        return _OBSERVATION_TOKENS


class _TimerWorldModel:
    """Predicts after a while."""

    async def predict(self, history: History, action: Action, n: int, partial: str = "") -> list[Prediction]:
        env = history.episode.sample
        await asyncio.sleep(_seconds(_PREDICTION, env, history.turn))
        return [Prediction(_predicted(env, history.turn))]

    def observe(self, transition: Transition) -> None:
        """Learns nothing."""

    def close(self) -> None:
        """Owns nothing."""


class _Ours:
    """Episodes with the speculator."""

    def __init__(self, turns: int) -> None:
        self._turns = turns
        self._speculator = Speculator(_TimerPolicy(), _TimerWorldModel(), FixedSelector(1, 1))

    async def play(self, env: int, gate: _Gate) -> None:
        episode = EpisodeId("benchmark", env)
        pending = self._speculator.start(episode, "do it")
        for turn in range(_WARM_UP + self._turns):
            action = await pending
            if turn == _WARM_UP:
                await gate.pass_through()
            _, following = await self._speculator.turn(pending.history, action, execute=_tool(env, turn))
            assert following is not None
            pending = following
        self._speculator.end(episode)

    async def close(self) -> None:
        await self._speculator.close()


class _Skeleton:
    """The same without anything of ours."""

    def __init__(self, turns: int) -> None:
        self._turns = turns

    async def play(self, env: int, gate: _Gate) -> None:
        loop = asyncio.get_running_loop()
        generation, timer = self._generate(env, 0)
        for turn in range(_WARM_UP + self._turns):
            await generation
            if turn == _WARM_UP:
                await gate.pass_through()
            tool = loop.create_task(_tool(env, turn))
            ahead = loop.create_task(self._ahead(env, turn))
            observation = await tool
            predicted, (generation, timer) = await ahead
            if predicted != observation:
                generation.cancel()
                timer.cancel()
                generation, timer = self._generate(env, turn + 1)
        generation.cancel()
        timer.cancel()

    async def _ahead(self, env: int, turn: int) -> tuple[str, _Request]:
        await asyncio.sleep(_seconds(_PREDICTION, env, turn))
        return _predicted(env, turn), self._generate(env, turn + 1)

    def _generate(self, env: int, turn: int) -> _Request:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Completion] = loop.create_future()
        completion = Completion(_ACTION_TOKENS, (0.0,) * len(_ACTION_TOKENS))
        return future, loop.call_later(_seconds(_GENERATION, env, turn), _settle, future, completion)

    async def close(self) -> None:
        """Owns nothing."""
