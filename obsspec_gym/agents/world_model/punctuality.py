"""Whether a world model is in time: asking one that never is costs its computing, and brings nothing."""

from __future__ import annotations

from collections import OrderedDict

from obsspec_gym.agents.world_model.program import program
from obsspec_gym.types import Action

_KEEP = 0.8
"""Of what was known, each further question leaves so much."""

_LEAST = 0.2
"""One that is in time less often is asked at every :data:`_LOOK_AGAIN`-th occasion only."""

_LOOK_AGAIN = 8
_KINDS = 1024


class Punctuality:
    """How often a model answered before its caller gave up, lately, by the first word of the action.

    Example:
        >>> model = Punctuality()
        >>> for _ in range(10):
        ...     model.note("ls -l", in_time=False)
        >>> [model.worth_asking("ls") for _ in range(8)].count(True)
        1
        >>> for _ in range(10):
        ...     model.note("make test", in_time=True)
        >>> model.worth_asking("make")
        True
    """

    def __init__(self) -> None:
        self._rate = 1.0
        self._rates: OrderedDict[str, float] = OrderedDict()
        self._passed = 0

    def worth_asking(self, action: Action) -> bool:
        """Whether to ask what an action brings."""
        if self._rates.get(program(action), self._rate) >= _LEAST:
            return True
        self._passed += 1
        return self._passed % _LOOK_AGAIN == 0

    def note(self, action: Action, *, in_time: bool) -> None:
        """It was asked, and answered in time or not."""
        kind = program(action)
        self._rates[kind] = _after(self._rates.pop(kind, self._rate), in_time)
        self._rate = _after(self._rate, in_time)
        if len(self._rates) > _KINDS:
            self._rates.popitem(last=False)


def _after(rate: float, in_time: bool) -> float:
    return _KEEP * rate + (1 - _KEEP) * in_time
