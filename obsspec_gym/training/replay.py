"""The most recent passages, for training; the newest are drawn most often."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Any

from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.training.passages import Passage


class Replay:
    """A bounded buffer whose passages are drawn with a probability that halves with age.

    Age counts calls of :meth:`add`: one is one policy step.

    Args:
        window: A passage is dropped when it is so many policy steps old.
        capacity_tokens: The oldest passages are dropped until what is left has at most so many tokens.
        half_life: A passage that is so many policy steps older is drawn half as often.

    Raises:
        InvalidArgumentError: If a bound is not positive.

    Example:
        >>> replay = Replay(window=2, capacity_tokens=1000, half_life=1.0)
        >>> replay.add([])
        >>> len(replay), replay.batches(1, 100, Random(0))
        (0, [])
    """

    def __init__(self, *, window: int, capacity_tokens: int, half_life: float) -> None:
        if window < 1 or capacity_tokens < 1 or not half_life > 0:
            raise InvalidArgumentError(
                f"window, capacity_tokens and half_life must be positive, got {window}, {capacity_tokens}, {half_life}"
            )
        self._window = window
        self._capacity_tokens = capacity_tokens
        self._half_life = half_life
        self._entries: deque[tuple[int, Passage]] = deque()
        self._tokens = 0
        self._clock = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def clock(self) -> int:
        """How many policy steps there have been."""
        return self._clock

    @property
    def tokens(self) -> int:
        """How many tokens are in it."""
        return self._tokens

    def add(self, passages: Iterable[Passage]) -> None:
        """Takes a policy step's passages (those that teach anything), and drops what is too old or too much."""
        self._clock += 1
        for passage in passages:
            if passage.teaches:
                self._entries.append((self._clock, passage))
                self._tokens += len(passage.ids)
        while self._entries and (self._tokens > self._capacity_tokens or self._age(self._entries[0]) >= self._window):
            self._tokens -= len(self._entries.popleft()[1].ids)

    def batches(self, count: int, tokens: int, random: Random) -> list[list[Passage]]:
        """Draws training batches.

        Passages are drawn without replacement, and begun anew when all are drawn. Those of a batch are of like length.

        Args:
            count: How many batches; fewer where there are fewer passages.
            tokens: How many tokens a batch has, roughly.
            random: Where the randomness comes from.
        """
        drawn: list[Passage] = []
        wanted = count * tokens if self._entries else 0
        while wanted > 0:
            for passage in self._order(random):
                drawn.append(passage)
                wanted -= len(passage.ids)
                if wanted <= 0:
                    break
        return _split(drawn, count, random)

    def state_dict(self) -> dict[str, Any]:
        """Its content, in plain values."""
        return {"clock": self._clock, "entries": [[added, passage.to_state()] for added, passage in self._entries]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes back what :meth:`state_dict` gave."""
        self._clock = state["clock"]
        self._entries = deque((added, Passage.of_state(passage)) for added, passage in state["entries"])
        self._tokens = sum(len(passage.ids) for _, passage in self._entries)

    def _age(self, entry: tuple[int, Passage]) -> int:
        return self._clock - entry[0]

    def _order(self, random: Random) -> list[Passage]:
        """All passages in the order of a weighted draw without replacement.

        The smallest of independent exponential variables of rates w is the i-th with probability w_i / sum(w), and so
        on among the rest; in logarithms no weight is too small.
        """

        def log_arrival(entry: tuple[int, Passage]) -> float:
            exponential = -math.log(1.0 - random.random())
            return math.log(max(exponential, 1e-300)) + math.log(2) * self._age(entry) / self._half_life

        keyed = [(log_arrival(entry), index) for index, entry in enumerate(self._entries)]
        entries = list(self._entries)
        return [entries[index][1] for _, index in sorted(keyed)]


def _split(passages: Sequence[Passage], count: int, random: Random) -> list[list[Passage]]:
    """At most ``count`` batches of about as many tokens each, in random order."""
    share = sum(len(passage.ids) for passage in passages) / count
    batches: list[list[Passage]] = [[] for _ in range(count)]
    begun = 0
    for passage in sorted(passages, key=lambda passage: len(passage.ids)):
        batches[int(begun / share)].append(passage)
        begun += len(passage.ids)
    random.shuffle(batches)
    return [batch for batch in batches if batch]
