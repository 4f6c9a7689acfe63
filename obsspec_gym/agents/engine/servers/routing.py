"""Which of several servers gets a request: the one that knows its conversation, unless that one has too much to do."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.types import Hint

_REMEMBERED = 100_000


@dataclass(frozen=True, slots=True)
class Imbalance:
    """When load counts for more than what a server has cached.

    The servers are out of balance when the busiest has more than ``absolute`` requests more than the idlest, and more
    than ``relative`` times as many.

    Attributes:
        absolute: Requests.
        relative: A factor, at least 1.
    """

    absolute: int = 32
    relative: float = 1.5

    def __post_init__(self) -> None:
        if self.absolute < 0 or not self.relative >= 1:
            raise InvalidArgumentError(
                f"an imbalance is absolute >= 0 and relative >= 1, got {self.absolute} and {self.relative}"
            )

    def found(self, loads: Sequence[int], progress: float) -> bool:
        """Whether loads are out of balance, for a conversation that is ``progress`` of its way.

        The longer a conversation, the more a server that does not know it has to read: what is nearly done is moved at
        twice the imbalance at which something new is.
        """
        most, least = max(loads), min(loads)
        return most - least > self.absolute * (1 + progress) and most > self.relative * least


class Router:
    """Remembers which conversation is where, and sends each request to one of the servers.

    Args:
        imbalance: When a conversation is moved.
        seed: Of the ties: among equally busy servers any may be chosen.

    Example:
        >>> router = Router()
        >>> first = router.choose(Hint("a"), [0, 0])
        >>> router.choose(Hint("a", turn=1), [3, 3]) == first
        True
        >>> router.choose(Hint("b"), [3, 2])
        1
    """

    def __init__(self, imbalance: Imbalance = Imbalance(), *, seed: int = 0) -> None:
        self._imbalance = imbalance
        self._random = random.Random(seed)
        self._homes: OrderedDict[Hashable, int] = OrderedDict()

    def choose(self, hint: Hint | None, loads: Sequence[int], usable: Sequence[int] | None = None) -> int:
        """The server for a request, which is from now on its conversation's.

        Args:
            hint: Whose request it is; without a trajectory it goes to the idlest.
            loads: Requests under way by server.
            usable: The servers that may be chosen, at least one; by default all.

        Returns:
            The server's index in ``loads``.
        """
        usable = range(len(loads)) if usable is None else usable
        trajectory = None if hint is None else hint.trajectory
        if hint is None or trajectory is None:
            return self._idlest(loads, usable)
        home = self._homes.get(trajectory)
        if home not in usable or self._imbalance.found([loads[server] for server in usable], hint.progress):
            # Of servers that are equally idle the one that knows the conversation is the best.
            least = min(loads[server] for server in usable)
            known = home is not None and home in usable and loads[home] == least
            home = home if known else self._idlest(loads, usable)
        assert home is not None
        self._remember(trajectory, home)
        return home

    def _idlest(self, loads: Sequence[int], usable: Sequence[int]) -> int:
        least = min(loads[server] for server in usable)
        return self._random.choice([server for server in usable if loads[server] == least])

    def _remember(self, trajectory: Hashable, home: int) -> None:
        self._homes[trajectory] = home
        self._homes.move_to_end(trajectory)
        if len(self._homes) > _REMEMBERED:
            self._homes.popitem(last=False)
