"""History: equal exactly where whoever reads it cannot tell the difference; immutable; shared."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from obsspec_gym.agents.history import History, Turn, fingerprint, same_observation
from obsspec_gym.types import EpisodeId, MalformedCall, TokenIds

EPISODE = EpisodeId("task", 0)

scalars = st.one_of(
    st.none(),
    st.text(max_size=8),
    st.binary(max_size=8),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.sampled_from([0, 0.0, -0.0, "", b"", "0", 1, True, 1.0, float("nan")]),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
    ),
    max_leaves=6,
)
arrays = st.builds(
    lambda items, dtype, shape: np.array(items[: shape[0] * shape[1]], dtype=dtype).reshape(shape),
    st.lists(st.integers(0, 3), min_size=6, max_size=6),
    st.sampled_from(["int8", "uint8", "int64", "float32", "float64", "bool"]),
    st.sampled_from([(2, 3), (3, 2), (1, 6), (1, 1), (2, 2)]),
)


def kind(value: Any) -> str:
    return {"b": "bool", "i": "int", "u": "int", "f": "float"}[np.asarray(value).dtype.kind]


def bits(value: Any) -> Any:
    """A float's bits, but one and the same for every NaN."""
    return "nan" if np.isnan(value) else np.asarray(value, dtype=np.float64).tobytes()


def same(left: Any, right: Any) -> bool:
    """Exact equality, written out once more in the plainest way."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return bool(bits(left) == bits(right))
    if isinstance(left, np.ndarray):
        return (left.dtype, left.shape) == (right.dtype, right.shape) and np.array_equal(left, right)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    return bool(left == right)


def equal(left: Any, right: Any) -> bool:
    """Equality by value, likewise."""
    if isinstance(left, bool | int | float | np.ndarray) and isinstance(right, bool | int | float | np.ndarray):
        left, right = np.asarray(left), np.asarray(right)
        same_kind = kind(left) == kind(right)
        return same_kind and np.array_equal(left, right, equal_nan=kind(left) == "float")
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(equal, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    return type(left) is type(right) and bool(left == right)


@settings(max_examples=150)
@given(left=values, right=values)
def test_observations_are_the_same_exactly_if_nothing_can_tell_them_apart(left: Any, right: Any) -> None:
    assert same_observation(left, right) == same(left, right)
    assert same_observation(left, left)
    assert (fingerprint(left) == fingerprint(right)) == equal(left, right)


@given(left=arrays, right=arrays)
def test_arrays_are_the_same_by_dtype_shape_and_bits_and_equal_by_value(left: Any, right: Any) -> None:
    assert same_observation(left, right) == same(left, right)
    assert same_observation(left, np.asfortranarray(left))
    assert (fingerprint(left) == fingerprint(right)) == equal(left, right)


def test_the_same_observation_by_example() -> None:
    assert not same_observation(np.int64(3), 3), "a policy may overflow with the one and not with the other"
    assert not same_observation(np.float32(0.5), np.float64(0.5))
    assert not same_observation(0.0, -0.0), "1 / x tells them apart"
    assert not same_observation(np.zeros(3, np.float32), np.full(3, -0.0, np.float32))
    assert not same_observation(np.zeros(()), np.float64(0))
    assert not same_observation((1, 2), [1, 2])
    nan = np.uint32([0x7FC00000, 0xFFC00001]).view(np.float32)
    assert same_observation(nan[0], nan[1]), "NaN equals NaN, whatever its sign and payload"
    assert same_observation(np.array([1, nan[0]]), np.array([1, nan[1]]))
    assert same_observation(np.array([1 + 1j, complex("nan")]), np.array([1 + 1j, complex("nan")]))
    assert same_observation(np.array([1, 2], dtype=">i4"), np.array([1, 2], dtype="<i4"))
    assert same_observation({"a": np.arange(4)[::2]}, {"a": np.array([0, 2])})
    assert not same_observation({"a": np.arange(2)}, {"a": np.arange(2), "b": None})
    assert same_observation(2**70, 2**70)
    assert not same_observation(2**70, 2**71)


def test_equal_values_by_example() -> None:
    def alike(left: Any, right: Any) -> bool:
        return fingerprint(left) == fingerprint(right)

    assert alike(np.int8(3), 3)
    assert alike(np.uint64(3), np.int8(3))
    assert not alike(np.uint64(2**63), np.int64(-(2**63)))
    assert alike(np.float32(0.5), 0.5)
    assert not alike(np.float32(0.1), 0.1)
    assert alike(0.0, -0.0)
    assert alike(float("nan"), np.array([np.nan])[0])
    assert not alike(1, 1.0)
    assert not alike(1, True)
    assert not alike(np.zeros((2, 3)), np.zeros((3, 2)))
    assert not alike(np.zeros(1), 0.0)
    assert alike(1 + 0j, np.complex64(1))
    assert alike({1, 2}, frozenset({2, 1}))
    assert alike(np.array(["a", None], dtype=object), np.array(["a", None], dtype=object))


def test_a_malformed_call_is_not_the_command_of_the_same_text() -> None:
    assert not same_observation(MalformedCall("ls"), "ls")
    start = History.start(EPISODE, "do")
    assert start.act(MalformedCall("ls")).world_key != start.act("ls").world_key


def test_values_without_equality_by_value_are_refused() -> None:
    with pytest.raises(TypeError, match="got object"):
        fingerprint(object())
    with pytest.raises(TypeError):
        History.start(EPISODE, {"a": object()})


tokens = st.lists(st.integers(0, 5), max_size=3).map(tuple)
steps = st.lists(st.tuples(st.sampled_from("ab"), tokens, st.sampled_from("xy"), tokens), max_size=4)


def build(first: str, head: TokenIds, turns: list[tuple[str, TokenIds, str, TokenIds]]) -> History:
    history = History.start(EPISODE, first, head)
    for action, written, observation, shown in turns:
        history = history.act(action, written).observe(observation, shown)
    return history


@settings(max_examples=80)
@given(left=steps, right=steps, head=tokens)
def test_histories_are_equal_exactly_if_every_event_and_token_is(left: Any, right: Any, head: TokenIds) -> None:
    one, other = build("do", head, left), build("do", head, right)
    assert (one == other) == (left == right)
    assert (one.key == other.key) == (left == right)
    events = [[(a, o) for a, _, o, _ in turns] for turns in (left, right)]
    assert (one.world_key == other.world_key) == (events[0] == events[1])
    if one == other:
        assert hash(one) == hash(other)


@given(turns=steps, head=tokens)
def test_the_token_view_is_its_segments_in_order(turns: Any, head: TokenIds) -> None:
    history = build("do", head, turns)
    segments = [head, *(segment for _, written, _, shown in turns for segment in (written, shown))]
    assert history.token_ids == tuple(token for segment in segments for token in segment)
    assert history.length == len(history.token_ids)
    assert [event.segment for event in history] == segments


@given(turns=steps)
def test_the_structured_view_is_what_was_put_in(turns: Any) -> None:
    history = build("do", (), turns)
    assert history.turns == tuple(Turn(action, observation) for action, _, observation, _ in turns)
    assert history.turn == len(turns)
    assert history.first_observation == "do"
    acted = history.act("now")
    assert acted.turns == (*history.turns, Turn("now", None))
    assert acted.last_action == "now"


def test_the_same_tokens_cut_differently_are_different_histories() -> None:
    """A digest of concatenated tokens alone would not see the difference."""
    start = History.start(EPISODE, "do", (1,))
    assert start.act("a", (2, 3)).observe("x", (4,)) != start.act("a", (2,)).observe("x", (3, 4))


def test_extending_shares_the_past_and_leaves_it_as_it_was() -> None:
    start = History.start(EPISODE, "do", (1,))
    acted = start.act("ls", (2,))
    key = acted.key
    branches = [acted.observe(observation, (3,)) for observation in ("a", "b")]
    assert branches[0] != branches[1]
    assert all(branch.parent is acted for branch in branches)
    assert all(branch.root is start for branch in branches)
    assert (acted.key, acted.length, acted.turns) == (key, 2, (Turn("ls", None),))


def test_episodes_and_tasks_tell_histories_apart() -> None:
    first, second = (History.start(EpisodeId("task", sample), "do").act("ls") for sample in (0, 1))
    other = History.start(EpisodeId("another", 0), "do").act("ls")
    assert first != second
    assert first.world_key == second.world_key, "members of a group have been through the same"
    assert first.world_key != other.world_key
    assert first != "ls"


def test_what_is_visible_beside_the_observation_belongs_to_the_key() -> None:
    start = History.start(EPISODE, "do").act("ls")
    assert start.observe("a", visible=np.array([1, 0])) != start.observe("a", visible=np.array([1, 1]))
    assert start.observe("a", visible=np.array([1, 0])) == start.observe("a", visible=np.array([1, 0]))
    assert start.observe("a", visible=1) != start.observe("a")


def test_actions_and_observations_alternate() -> None:
    start = History.start(EPISODE, "do")
    with pytest.raises(ValueError, match="needs an action before it"):
        start.observe("a")
    with pytest.raises(ValueError, match="needs an observation before it"):
        start.act("ls").act("ls")
    with pytest.raises(ValueError, match="no action"):
        _ = start.last_action


def test_a_history_can_be_sent_to_another_process() -> None:
    history = build("do", (1, 2), [("ls", (3,), "a", (4, 5))])
    copy = pickle.loads(pickle.dumps(history))
    assert copy == history
    assert copy.token_ids == history.token_ids
    assert copy.turns == history.turns
