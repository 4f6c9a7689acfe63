"""The prefix cache of a simulated server: how much of a prompt need not be read, and what must go when it is full."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from obsspec_gym.agents.history import History


@dataclass(eq=False, slots=True)
class _Prefix:
    """What the cache holds of one history, beyond its longest prefix that is held as well."""

    own: int
    parent: _Prefix | None
    key: bytes
    after: int = 0  # tokens decoded after it
    users: int = 0
    children: int = 0


@dataclass
class PrefixCache:
    """A KV cache of stated size, shared by common prefixes; the least recently used leaves go first.

    Args:
        capacity: Tokens it holds.

    Attributes:
        used: Tokens held, those of requests that still decode left out.
    """

    capacity: int
    used: int = 0
    _held: OrderedDict[bytes, _Prefix] = field(default_factory=OrderedDict)

    def admit(self, history: History, growing: int) -> int | None:
        """Takes a prompt in and marks it as in use until :meth:`release`.

        Args:
            history: The prompt.
            growing: Tokens of requests that still decode, for which there must be room as well.

        Returns:
            How many of the prompt's tokens were there, or ``None`` where it does not fit.
        """
        held = self._held.get(history.key)
        if held is not None:
            self._touch(held)
            held.users += 1
            return history.length
        parent, found = None, 0
        for prefix, action in _prefixes(history):
            parent = self._held.get(prefix.key)
            if parent is not None:
                found = prefix.length + min(parent.after, action)
                break
        if parent is not None:
            self._touch(parent)
            parent.users += 1
        own = history.length - found
        fits = self.shrink(growing + own)
        if parent is not None:
            parent.users -= 1
        if not fits:
            return None
        self._held[history.key] = held = _Prefix(own, parent, history.key, users=1)
        self.used += own
        if parent is not None:
            parent.children += 1
        self._touch(held)
        return found

    def release(self, history: History, decoded: int) -> None:
        """A request is over; what it decoded after the prompt stays, until it is evicted.

        Args:
            history: Its prompt.
            decoded: Tokens decoded.
        """
        held = self._held[history.key]
        held.users -= 1
        self.used += max(0, decoded - held.after)
        held.after = max(held.after, decoded)

    def shrink(self, more: int) -> bool:
        """Evicts until ``more`` tokens fit; returns whether they do."""
        while self.used + more > self.capacity:
            victim = next((held for held in self._held.values() if not held.users and not held.children), None)
            if victim is None:
                return False
            del self._held[victim.key]
            self.used -= victim.own + victim.after
            if victim.parent is not None:
                victim.parent.children -= 1
        return True

    def _touch(self, held: _Prefix | None) -> None:
        """Most recently used; whatever it extends, more recently still, so that leaves are evicted first."""
        while held is not None:
            self._held.move_to_end(held.key)
            held = held.parent


def _prefixes(history: History) -> Iterator[tuple[History, int]]:
    """The shorter histories that end in an observation, longest first, with the tokens of the action after each."""
    node = history.parent
    while node is not None and node.parent is not None:
        yield node.parent, len(node.segment)
        node = node.parent.parent
