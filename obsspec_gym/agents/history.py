"""A history: everything one policy has seen and done in one episode, as an immutable, shared-prefix sequence.

Extending a history makes a new one that shares its past, so the many *possible* histories of a speculation cost
one small node each. Two histories are equal when every observation, action and token in them is: the ``key``, a
128-bit digest of all of it, is what generations are filed under (invariant I1).
"""

from __future__ import annotations

import array as arrays
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from obsspec_gym.types import Action, EpisodeId, MalformedCall, Observation, TokenIds

_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class Turn:
    """One action and the observation it brought (``None`` while the tool still runs)."""

    action: Action
    observation: Observation


class History:
    """An immutable sequence: first observation, then action, observation, action, ...

    Build one with :meth:`start` and extend it with :meth:`act` and :meth:`observe`.

    Attributes:
        episode: Whose history this is.
        parent: The history without its last event; ``None`` at the start.
        is_action: Whether the last event is an action (a tool is, or may be, running).
        value: The last event: an observation or an action.
        visible: What else the policy reads beside the last observation (see :class:`~obsspec_gym.types.Outcome`).
        segment: The token ids the last event added to the token view; empty for policies without tokens.
        turn: Number of actions so far.
        length: Number of tokens so far.
        key: Digest of every event *and token*: equal keys mean the policy is conditioned on the same.
        world_key: Digest of task and events only: equal world keys mean the environment has been through the same,
            whichever sample it was and whatever was written around the actions.

    Example:
        >>> h = History.start(EpisodeId("count"), "How many files?").act("ls | wc -l").observe("3")
        >>> h.turn, h.last_action, h.value
        (1, 'ls | wc -l', '3')
        >>> h == History.start(EpisodeId("count"), "How many files?").act("ls | wc -l").observe("3")
        True
    """

    __slots__ = ("_token_ids", "episode", "is_action", "key", "length", "parent", "segment", "turn", "value",
                 "visible", "world_key")  # fmt: skip

    def __init__(
        self,
        episode: EpisodeId,
        parent: History | None,
        is_action: bool,
        value: Any,
        segment: TokenIds,
        visible: Any,
    ) -> None:
        self.episode = episode
        self.parent = parent
        self.is_action = is_action
        self.value = value
        self.visible = visible
        self.segment = tuple(segment)
        self.turn: int = (parent.turn if parent else 0) + is_action
        self.length: int = (parent.length if parent else 0) + len(self.segment)
        event = _event(is_action, value, visible)
        tokens = arrays.array("q", self.segment).tobytes()
        self.world_key: bytes = _digest(parent.world_key if parent else episode.task_id.encode(), event)
        self.key: bytes = _digest(parent.key if parent else b"", self.world_key, tokens)
        self._token_ids: TokenIds | None = None

    @classmethod
    def start(
        cls, episode: EpisodeId, observation: Observation, token_ids: TokenIds = (), visible: Any = None
    ) -> History:
        """The history of an episode that was just reset.

        Args:
            episode: Task and sample.
            observation: What ``reset`` returned.
            token_ids: The token view of it (system prompt, tools and task for a language model).
            visible: What else the policy reads.
        """
        return cls(episode, None, False, observation, token_ids, visible)

    def act(self, action: Action, token_ids: TokenIds = ()) -> History:
        """This history, then an action.

        Args:
            action: The action.
            token_ids: The tokens the policy sampled for it, exactly as sampled.

        Raises:
            ValueError: If the last event is an action already.
        """
        if self.is_action:
            raise ValueError("an action needs an observation before it, and the last event is an action")
        return History(self.episode, self, True, action, token_ids, None)

    def observe(self, observation: Observation, token_ids: TokenIds = (), visible: Any = None) -> History:
        """This history, then an observation.

        Args:
            observation: The observation, real or predicted.
            token_ids: The tokens that show it to the policy.
            visible: What else the policy reads.

        Raises:
            ValueError: If the last event is not an action.
        """
        if not self.is_action:
            raise ValueError("an observation needs an action before it, and the last event is an observation")
        return History(self.episode, self, False, observation, token_ids, visible)

    @property
    def token_ids(self) -> TokenIds:
        """All tokens from the start, as the policy is conditioned on them."""
        if self._token_ids is None:
            self._token_ids = (*self.parent.token_ids, *self.segment) if self.parent else self.segment
        return self._token_ids

    @property
    def events(self) -> list[History]:
        """The histories from the start to this one, each ending in one event."""
        events: list[History] = []
        node: History | None = self
        while node is not None:
            events.append(node)
            node = node.parent
        return events[::-1]

    @property
    def first_observation(self) -> Observation:
        """What ``reset`` returned; for terminals the task's instruction."""
        return self.events[0].value

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The structured view: action and observation of every turn, oldest first."""
        events = self.events[1:]
        values = [event.value for event in events] + ([None] if self.is_action else [])
        return tuple(Turn(values[i], values[i + 1]) for i in range(0, len(values), 2))

    @property
    def last_action(self) -> Action:
        """The most recent action.

        Raises:
            ValueError: If there is none yet.
        """
        node = self if self.is_action else self.parent
        if node is None:
            raise ValueError("there is no action in this history yet")
        return node.value

    @property
    def root(self) -> History:
        """The history this episode started with."""
        return self.events[0]

    def __iter__(self) -> Iterator[History]:
        return iter(self.events)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, History):
            return NotImplemented
        return self.key == other.key and self.episode == other.episode

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        last = "action" if self.is_action else "observation"
        return f"History({self.episode.task_id}#{self.episode.sample}, turn {self.turn}, {last} {self.value!r:.60})"


def same_observation(left: Observation, right: Observation) -> bool:
    """Whether two observations are exactly the same to whoever reads them: what a prediction is verified by.

    Text by ``==``; numbers and arrays by type (a Python ``int`` is not an ``np.int64``), dtype, shape and every bit;
    containers element by element. The one exception: NaN equals NaN, whatever its sign and payload.
    """
    return fingerprint(left, exact=True) == fingerprint(right, exact=True)


def fingerprint(value: Any, *, exact: bool = False) -> bytes:
    """A canonical byte string of a value: equal bytes exactly where the values are equal.

    Args:
        value: Text, numbers, arrays, and containers of these.
        exact: As :func:`same_observation`. Otherwise numbers and arrays compare by value within their kind (bool,
            integer, float, ...) and not by width, ``-0.0`` equals ``0.0``, and a list equals the tuple of the same:
            so ``2`` and ``np.int64(2)`` are the same action.

    Raises:
        TypeError: For values without equality by value.
    """
    # The usual ones first: every event of every history comes through here.
    kind = type(value)
    if value is None:
        return _NONE
    if kind is str:
        return _tagged(b"s", value.encode("utf-8", "surrogatepass"))
    if kind is bool:
        return _TRUE[exact] if value else _FALSE[exact]
    if kind is tuple:
        return _tagged(b"t", b"".join([fingerprint(item, exact=exact) for item in value]))
    parts: list[bytes] = []
    _write(value, parts, exact)
    return b"".join(parts)


def _event(is_action: bool, value: Any, visible: Any) -> bytes:
    """The fingerprint of the three, without taking them apart again."""
    exact = not is_action
    flag = _TRUE[exact] if is_action else _FALSE[exact]
    return _tagged(b"t", flag + fingerprint(value, exact=exact) + fingerprint(visible, exact=exact))


def _digest(*parts: bytes) -> bytes:
    content = b"".join([len(part).to_bytes(8, "little") + part for part in parts])
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()


def _tagged(tag: bytes, payload: bytes) -> bytes:
    return tag + len(payload).to_bytes(8, "little") + payload


def _field(tag: bytes, payload: bytes, parts: list[bytes]) -> None:
    parts.append(_tagged(tag, payload))


def _write(value: Any, parts: list[bytes], exact: bool) -> None:
    if isinstance(value, MalformedCall):
        _field(b"c", value.encode("utf-8", "surrogatepass"), parts)  # not the command of the same text
    elif isinstance(value, str):
        _field(b"s", value.encode("utf-8", "surrogatepass"), parts)
    elif isinstance(value, bytes | bytearray):
        _field(b"y", bytes(value), parts)
    elif isinstance(value, int) and not -(2**63) <= value < 2**64:
        _field(b"i", str(value).encode(), parts)  # no array holds it
    elif isinstance(value, np.generic | np.ndarray):
        _write_array(np.asarray(value), parts, exact)
        if exact:
            _field(b"g", str(isinstance(value, np.ndarray)).encode(), parts)
    elif isinstance(value, bool | int | float | complex):
        _write_array(np.asarray(value), parts, exact)
    elif isinstance(value, Mapping):
        items = sorted((fingerprint(key, exact=exact), fingerprint(item, exact=exact)) for key, item in value.items())
        _field(b"m", b"".join(key + item for key, item in items), parts)
    elif isinstance(value, tuple | list):
        tag = b"l" if exact and isinstance(value, list) else b"t"
        _field(tag, b"".join(fingerprint(item, exact=exact) for item in value), parts)
    elif isinstance(value, set | frozenset):
        _field(b"e", b"".join(sorted(fingerprint(item, exact=exact) for item in value)), parts)
    else:
        raise TypeError(
            f"observations and actions are text, numbers, arrays and containers of these, got {type(value).__name__}"
        )


def _write_array(array: np.ndarray[Any, Any], parts: list[bytes], exact: bool) -> None:
    if array.dtype.kind == "O":
        items = b"".join(fingerprint(item, exact=exact) for item in array.ravel())
        _field(b"o", str(array.shape).encode() + items, parts)
    elif exact:
        _write_exact(array, parts)
    else:
        _write_by_value(array, parts)


def _write_exact(array: np.ndarray[Any, Any], parts: list[bytes]) -> None:
    """Dtype, shape and bits; only NaNs are all the same."""
    dtype = array.dtype.newbyteorder("=")
    array = np.ascontiguousarray(array, dtype=dtype).reshape(array.shape)
    if dtype.kind == "f":
        array = np.where(np.isnan(array), dtype.type(np.nan), array)
    elif dtype.kind == "c":
        real, imaginary = (np.where(np.isnan(part), np.nan, part) for part in (array.real, array.imag))
        array = np.stack([real, imaginary])
    _field(b"x" + dtype.str.encode(), str(array.shape).encode() + array.tobytes(), parts)


def _write_by_value(array: np.ndarray[Any, Any], parts: list[bytes]) -> None:
    kind = array.dtype.kind
    if kind == "i" or (kind == "u" and array.dtype.itemsize < 8):
        array, kind = array.astype(np.int64), "i"
    elif kind == "u":
        fits = bool((array <= np.uint64(2**63 - 1)).all())
        array, kind = (array.astype(np.int64), "i") if fits else (array, "u")
    elif kind == "f":
        array = array.astype(np.float64) + 0.0  # -0.0 + 0.0 == 0.0
        array = np.where(np.isnan(array), np.nan, array)
    elif kind == "c":
        array = array.astype(np.complex128) + 0.0
    _field(b"a" + kind.encode(), str(array.shape).encode() + np.ascontiguousarray(array).tobytes(), parts)


_NONE = _tagged(b"n", b"")


def _boolean(value: bool, exact: bool) -> bytes:
    parts: list[bytes] = []
    _write(value, parts, exact)
    return b"".join(parts)


_FALSE, _TRUE = ((_boolean(value, exact=False), _boolean(value, exact=True)) for value in (False, True))
