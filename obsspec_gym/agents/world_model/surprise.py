"""How unexpected the actions of a history are to a model that has learnt actions as well as observations."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence

from obsspec_gym.agents.engine.base import Engine
from obsspec_gym.agents.generation import Generation
from obsspec_gym.agents.history import History
from obsspec_gym.agents.world_model.confidence import LEAST
from obsspec_gym.types import Action, Completion, Sampling, TokenIds

Locate = Callable[[History, Action], tuple[TokenIds, TokenIds] | None]
"""The tokens before an action, and the action's own; ``None`` where it cannot be shown to the model."""


class Surprises:
    """Asks the engine about each action once.

    An action is offered as a *draft* of the model's greedy continuation: one pass accepts it as far as the model would
    have written the same, with the log-probability of every token accepted. The first token that the model would have
    written otherwise has at most the probability that its own choice left over: a bound, and enough of one.

    Args:
        engine: Verifies drafts.
        locate: Where an action stands in the model's text.
        capacity: How many actions are remembered.
    """

    def __init__(self, engine: Engine, locate: Locate, *, capacity: int = 16_384) -> None:
        self._engine = engine
        self._locate = locate
        self._capacity = capacity
        self._known: OrderedDict[tuple[int, bytes], float] = OrderedDict()

    async def lowest(self, history: History, action: Action) -> float:
        """How surprising the most surprising action was, the latest included.

        Args:
            history: Ends with the observation that ``action`` was chosen on.
            action: The latest action.

        Returns:
            Bound on the log-probability of the least likely token of them all, in [LEAST, 0].
        """
        lowest = 0.0
        asked: list[tuple[History, Generation, TokenIds]] = []
        try:
            for act in (*(event for event in history.events if event.is_action), history.act(action)):
                surprise = self._recall(act)
                if surprise is not None:
                    lowest = min(lowest, surprise)
                elif (generation := self._submit(act)) is not None:
                    asked.append((act, *generation))
            for act, generating, own in asked:
                completion = await generating
                surprise = surprise_of(own, completion)
                self._remember(act, completion.weights_version, surprise)
                lowest = min(lowest, surprise)
        finally:
            for _, generating, _ in asked:
                generating.cancel()
        return lowest

    def _recall(self, act: History) -> float | None:
        """What was found out about an action under the present weights."""
        key = (self._engine.weights_version, act.world_key)
        if key not in self._known:
            return None
        self._known.move_to_end(key)
        return self._known[key]

    def _remember(self, act: History, version: int, surprise: float) -> None:
        """Remembers what an answer under some version of the weights said."""
        self._known[version, act.world_key] = surprise
        if len(self._known) > self._capacity:
            self._known.popitem(last=False)

    def _submit(self, act: History) -> tuple[Generation, TokenIds] | None:
        """Has the engine verify an action; with the tokens it was offered."""
        assert act.parent is not None
        place = self._locate(act.parent, act.value)
        if place is None:
            return None
        before, own = place
        sampling = Sampling(temperature=0.0, max_tokens=len(own), stop_token_ids=own[-1:])
        return self._engine.submit(before, sampling, 0, draft=own), own


def surprise_of(own: Sequence[int], completion: Completion) -> float:
    """Bound on the log-probability of an action's least likely token, up to the first that was not expected.

    Args:
        own: The action's tokens: (L,).
        completion: The model's greedy continuation, with log-probabilities at temperature 1.

    Returns:
        In [LEAST, 0]; 0 where every token was certain.

    Example:
        >>> surprise_of((1, 2), Completion((1, 2), (-0.1, -0.5)))
        -0.5
        >>> round(surprise_of((1, 2), Completion((1, 3), (-0.1, -0.1))), 2)  # at most 1 - exp(-0.1) was left for 2
        -2.35
    """
    lowest = 0.0
    for expected, token, logprob in zip(own, completion.token_ids, completion.logprobs, strict=False):
        if token != expected:
            left = -math.expm1(min(logprob, 0.0))
            return max(LEAST, min(lowest, math.log(left) if left > 0 else LEAST))
        lowest = min(lowest, logprob)
    return max(LEAST, lowest)
