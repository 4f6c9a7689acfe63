"""The prefix tree against a plain dictionary."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from obsspec_gym.agents.engine.embedded.prefix import PrefixTree  # noqa: E402


def kv_of(tokens):
    """Keys and values that depend on the whole prefix, as real ones do."""
    state, out = 0, []
    for token in tokens:
        state = (31 * state + token + 1) % 100_003
        out.append(state)
    return torch.tensor(out, dtype=torch.float64).view(1, 1, 1, -1, 1)


def found(tree, tokens, limit):
    pieces = tree.match(tokens, limit)
    return torch.cat(pieces, dim=3) if pieces else kv_of([])


prefixes = st.lists(st.integers(0, 2), min_size=1, max_size=9)


@settings(max_examples=200, deadline=None)
@given(st.lists(prefixes, max_size=12), prefixes, st.integers(0, 9))
def test_match_finds_the_longest_known_prefix(inserted, query, limit):
    tree, known = PrefixTree(), {()}
    for tokens in inserted:
        tree.insert(tokens, kv_of(tokens))
        known |= {tuple(tokens[:i]) for i in range(len(tokens) + 1)}
    assert tree.size == len(known) - 1
    longest = max(i for i in range(len(query) + 1) if tuple(query[:i]) in known)
    assert tree.known(query) == longest
    assert torch.equal(found(tree, query, limit), kv_of(query[: min(limit, longest)]))


@settings(max_examples=100, deadline=None)
@given(st.lists(prefixes, min_size=1, max_size=12), st.integers(0, 20))
def test_shrinking_keeps_what_is_left_right_and_counts_it(inserted, size):
    tree = PrefixTree()
    for tokens in inserted:
        tree.insert(tokens, kv_of(tokens))
    tree.shrink(size)
    assert tree.size <= size
    left = set()
    for tokens in inserted:
        count = tree.known(tokens)
        left |= {tuple(tokens[:i]) for i in range(1, count + 1)}
        assert torch.equal(found(tree, tokens, len(tokens)), kv_of(tokens[:count]))
    assert tree.size == len(left)


def test_the_least_recently_used_goes_first():
    tree = PrefixTree()
    for tokens in ([0, 1], [0, 2], [3, 4]):
        tree.insert(tokens, kv_of(tokens))
    tree.match([0, 1], 2)
    tree.shrink(tree.size - 1)
    assert [tree.known(t) for t in ([0, 1], [0, 2], [3, 4])] == [2, 1, 2]
    tree.clear()
    assert (tree.size, tree.known([0, 1])) == (0, 0)
