"""What grows on a real history while its tool runs: predictions, generations on them, and so on below."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from obsspec_gym.agents.generation import Generation
from obsspec_gym.agents.history import History
from obsspec_gym.agents.policy import Policy
from obsspec_gym.errors import ObsSpecError
from obsspec_gym.speculation.futures import Future, Futures
from obsspec_gym.speculation.predictor import Predictor
from obsspec_gym.speculation.selector import Candidate, Selector
from obsspec_gym.types import Prediction


class Growth:
    """Grows the futures of any number of episodes, each as far as its turn's budget says.

    Args:
        policy: Reads what was generated, and shows observations to whoever generates.
        predictor: Predicts observations.
        selector: Says which predictions are worth generating on.
        generate: Starts the speculative generation after a history.

    Attributes:
        selector_failures: How often the selector failed over a prediction, by reason: it counts as declined.
    """

    def __init__(
        self, policy: Policy, predictor: Predictor, selector: Selector, generate: Callable[[History], Generation]
    ) -> None:
        self._policy = policy
        self._predictor = predictor
        self._selector = selector
        self._generate = generate
        self._tasks: set[asyncio.Task[None]] = set()
        self.selector_failures: Counter[str] = Counter()

    def begin(self, futures: Futures, acted: History) -> asyncio.Task[None] | None:
        """Asks what ``acted`` brings; what goes on below that is the task that is returned, if there is any."""
        depth = futures.budget.depth
        if depth < 1:
            return None
        self._ask(futures, futures.root, acted)
        return self._spawn(self._grow(futures, futures.root)) if depth > 1 else None

    async def close(self) -> None:
        """Cancels what is under way and waits for it. Idempotent."""
        for task in self._tasks:
            task.cancel()
        await _all(list(self._tasks))

    def _ask(self, futures: Futures, future: Future, acted: History) -> None:
        """Has the world model predict what ``acted`` brings, and generates ahead on its predictions."""
        if future.branching is None:
            file = partial(self._file, futures, future, acted)
            future.branching = self._predictor.ask(acted, futures.budget.breadth, file)
            return
        # It was asked when ``acted`` was less certain, and predictions may have been declined for that.
        for child in future.children.values():
            if child.generation is None and child.prediction is not None and not child.prediction.ends:
                chance = self._chance(futures, future, acted, child.prediction, child.rank)
                if chance > 0:
                    child.begin(chance, self._generate(child.history), asyncio.get_running_loop().time())

    async def _grow(self, futures: Futures, future: Future) -> None:
        """Goes on below a future's predictions, once they are there."""
        if future.branching is None:
            return  # the world model is left alone
        await future.branching.wait()
        below = [
            self._grow_below(futures, child, child.generation)
            for child in future.children.values()
            if child.generation is not None
        ]
        await _all([self._spawn(work) for work in below])

    async def _grow_below(self, futures: Futures, future: Future, generation: Generation) -> None:
        """Goes on below a future as soon as its action is known."""
        try:
            completion = await generation
        except ObsSpecError:
            return  # cancelled, or the engine failed: then nothing follows it
        if future.given_up:
            return  # at this very moment: this task's own cancellation is still on its way down to it
        acted = future.history.act(self._policy.parse(completion), completion.token_ids)
        self._ask(futures, future, acted)
        if futures.level(acted) < futures.budget.depth:
            await self._grow(futures, future)

    def _file(self, futures: Futures, parent: Future, acted: History, predictions: Sequence[Prediction]) -> None:
        """Files a future for each of the predictions of what ``acted`` brings."""
        assert parent.branching is not None
        asked, ready = parent.branching.asked, asyncio.get_running_loop().time()
        for rank, prediction in enumerate(predictions):
            if futures.full:
                return
            try:
                future = self._possible(futures, parent, acted, prediction, rank)
            except Exception as error:  # noqa: BLE001 - boundary I4: an unusable prediction costs only itself
                self._predictor.reject(f"unusable prediction: {type(error).__name__}: {error}")
                continue
            future.prediction_started, future.prediction_ready = asked, ready
            futures.add(parent, future)

    def _possible(self, futures: Futures, parent: Future, acted: History, prediction: Prediction, rank: int) -> Future:
        """A future for one prediction: its generation starts, unless it is declined or predicted to end."""
        chance = self._chance(futures, parent, acted, prediction, rank)
        tokens = () if prediction.ends else self._policy.encode_observation(acted, prediction.observation)
        history = acted.observe(prediction.observation, tokens, prediction.visible)
        generation = None if prediction.ends or chance <= 0 else self._generate(history)
        return Future(history, generation, asyncio.get_running_loop().time(), prediction, rank, chance)

    def _chance(self, futures: Futures, parent: Future, acted: History, prediction: Prediction, rank: int) -> float:
        elapsed = asyncio.get_running_loop().time() - futures.began
        level = futures.level(acted)
        candidate = Candidate(acted, prediction, rank, level, parent.chance, elapsed, futures.budget)
        try:
            return self._selector.chance(candidate)
        except Exception as error:  # noqa: BLE001 - boundary: what cannot be weighed is declined, and told by its name
            self.selector_failures[f"{type(error).__name__}: {error}"] += 1
            return 0.0

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _all(tasks: list[asyncio.Task[None]]) -> None:
    """Waits for tasks, and cancels them if it is cancelled itself."""
    if not tasks:
        return
    try:
        await asyncio.wait(tasks)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        raise
