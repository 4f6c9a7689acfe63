"""A world model that remembers: in a group of episodes of one task the same command prefixes recur."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from obsspec_gym.agents.history import History, fingerprint
from obsspec_gym.agents.world_model.calibration import Calibration, capped, outcome_key
from obsspec_gym.agents.world_model.effects import may_change_state
from obsspec_gym.agents.world_model.partial import may_continue
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.types import Action, Outcome, Prediction, Transition

LEVELS = ("prefix", "commands", "state", "observation", "elsewhere", "action")
"""Contexts an outcome is filed under, most specific first; level ``x`` predicts as source ``memory:x``.

- prefix: same task, same actions and observations so far.
- commands: same task, same actions so far.
- state: same task, same state-changing actions so far, in order.
- observation: same task, same last observation.
- elsewhere: any task, same last observation.
- action: any task, anything before.

All of them with the same action about to be executed.
"""


@dataclass(slots=True)
class _Seen:
    """An outcome, how often it came, and when last (in transitions)."""

    outcome: Outcome
    count: int
    last: int


class MemoryWorldModel:
    """Predicts what came the last times, from the most specific context that is known.

    The raw confidence of an outcome seen ``c`` times in a context seen ``N`` times is ``c / (N + 1)``; it is
    calibrated per level by what would have been predicted for each transition before it was filed. Where a level
    knows fewer than ``n`` outcomes the next ones fill up, with the probability that is left. Commands that never
    gave the same output twice (``date``) are not predicted at all.

    Deterministic: equal transitions in equal order give equal predictions. Used from one thread.

    Args:
        capacity: Contexts remembered, a level; the one that recurred least recently is forgotten.
        outcomes: Distinct outcomes remembered, a context; the rarest, then oldest, is forgotten.

    Raises:
        InvalidArgumentError: If an argument is not positive.

    Example:
        >>> import asyncio
        >>> from obsspec_gym.types import EpisodeId
        >>> memory = MemoryWorldModel()
        >>> history = History.start(EpisodeId("count"), "How many files?")
        >>> memory.observe(Transition(history.act("ls | wc -l"), Outcome("3"), 0.1))
        >>> [prediction] = asyncio.run(memory.predict(history, "ls | wc -l", 1))
        >>> prediction.observation, prediction.source
        ('3', 'memory:prefix')
    """

    _REPEATS_BEFORE_VOLATILE = 3

    def __init__(self, *, capacity: int = 50_000, outcomes: int = 8) -> None:
        if capacity < 1 or outcomes < 1:
            raise InvalidArgumentError(f"capacity and outcomes must be >= 1, got {capacity} and {outcomes}")
        self._capacity = capacity
        self._outcomes = outcomes
        self._levels: dict[str, OrderedDict[bytes, dict[bytes, _Seen]]] = {level: OrderedDict() for level in LEVELS}
        self._repeats: OrderedDict[bytes, tuple[int, int]] = OrderedDict()  # action: repeated, of them equal
        self._calibration = Calibration()
        self._clock = 0

    def __len__(self) -> int:
        """How many distinct contexts are remembered, over all levels."""
        return sum(map(len, self._levels.values()))

    async def predict(self, history: History, action: Action, n: int, partial: str = "") -> list[Prediction]:
        """What is remembered for ``action``, most probable first; nothing where nothing fits ``partial``."""
        if n < 1 or self.never_repeats(action):
            return []
        predictions: list[Prediction] = []
        known: set[bytes] = set()
        left = 1.0
        for raw in self._by_level(_contexts(history, action), partial):
            new = [p for p in raw if outcome_key(p) not in known]
            calibrated = capped([replace(p, probability=left * self._calibrated(p)) for p in new])
            known.update(map(outcome_key, new))
            left = max(0.0, left - sum(p.probability for p in calibrated))
            predictions += calibrated
            if len(predictions) >= n:
                break
        return sorted(predictions, key=lambda p: -p.probability)[:n]

    def observe(self, transition: Transition) -> None:
        """Verifies what would have been predicted, then files what happened under every level."""
        history, action, outcome = transition.history.parent, transition.action, transition.outcome
        if history is None:
            raise InvalidArgumentError("a transition's history must end with an action, got the start of one")
        happened = outcome_key(outcome)
        contexts = _contexts(history, action)
        for prediction in next(self._by_level(contexts), []):
            calibrator = self._calibration[prediction.source]
            calibrator.update(prediction.probability, outcome_key(prediction) == happened)
        self._clock += 1
        for level, context in zip(LEVELS, contexts, strict=True):
            self._file(level, context, happened, outcome, action)

    def never_repeats(self, action: Action) -> bool:
        """Whether the action was repeated in the same context several times, with a new outcome each time."""
        repeated, equal = self._repeats.get(fingerprint(action), (0, 0))
        return repeated >= self._REPEATS_BEFORE_VOLATILE and equal == 0

    def close(self) -> None:
        """Owns nothing that needs closing."""

    def state_dict(self) -> dict[str, Any]:
        """Everything remembered, as plain containers for a checkpoint."""
        return {
            "levels": {
                level: [
                    (context, [(s.outcome, s.count, s.last) for s in seen.values()])
                    for context, seen in contexts.items()
                ]
                for level, contexts in self._levels.items()
            },
            "repeats": list(self._repeats.items()),
            "calibration": self._calibration.state_dict(),
            "clock": self._clock,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes back what :meth:`state_dict` gave; what does not fit ``capacity`` is forgotten."""
        for level, contexts in self._levels.items():
            contexts.clear()
            for context, seen in state["levels"].get(level, [])[-self._capacity :]:
                contexts[context] = {outcome_key(each[0]): _Seen(*each) for each in seen}
        self._repeats = OrderedDict(state["repeats"])
        self._calibration.load_state_dict(state["calibration"])
        self._clock = state["clock"]

    def _by_level(self, contexts: Sequence[bytes], partial: str = "") -> Iterator[list[Prediction]]:
        """The raw predictions of each level that has some, most specific first, best first."""
        for level, context in zip(LEVELS, contexts, strict=True):
            seen = self._levels[level].get(context)
            fitting = [s for s in (seen or {}).values() if may_continue(partial, s.outcome.observation)]
            if not fitting:
                continue
            total = sum(s.count for s in fitting)
            fitting.sort(key=lambda s: (-s.count, -s.last))
            yield [_prediction(s.outcome, s.count / (total + 1), f"memory:{level}") for s in fitting]

    def _calibrated(self, prediction: Prediction) -> float:
        return self._calibration[prediction.source](prediction.probability)

    def _file(self, level: str, context: bytes, happened: bytes, outcome: Outcome, action: Action) -> None:
        contexts = self._levels[level]
        seen = contexts.setdefault(context, {})
        contexts.move_to_end(context)
        if level == "commands" and seen:
            repeated, equal = self._repeats.pop(fingerprint(action), (0, 0))
            self._repeats[fingerprint(action)] = (repeated + 1, equal + (happened in seen))
        if happened in seen:
            seen[happened].count += 1
            seen[happened].last = self._clock
        else:
            seen[happened] = _Seen(outcome, 1, self._clock)
        if len(seen) > self._outcomes:
            del seen[min(seen, key=lambda key: (seen[key].count, seen[key].last))]
        for bounded in (contexts, self._repeats):
            if len(bounded) > self._capacity:
                bounded.popitem(last=False)


def _prediction(outcome: Outcome, confidence: float, source: str) -> Prediction:
    return Prediction(outcome.observation, outcome.ends, confidence, source, outcome.visible)


def _contexts(history: History, action: Action) -> tuple[bytes, ...]:
    """The context of ``action`` at every level of ``LEVELS``."""
    task = history.episode.task_id.encode()
    now = fingerprint(action)
    past = [event.value for event in history if event.is_action]
    changes = [value for value in past if may_change_state(value)]
    seen = fingerprint((history.value, history.visible))
    return (
        _digest(history.world_key, now),
        _digest(task, now, *map(fingerprint, past)),
        _digest(task, now, *map(fingerprint, changes)),
        _digest(task, now, seen),
        _digest(now, seen),
        _digest(now),
    )


def _digest(*parts: bytes) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()
