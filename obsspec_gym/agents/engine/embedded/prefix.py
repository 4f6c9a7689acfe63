"""What was computed before: a radix tree of token prefixes with their keys and values.

Nobody holds a reference into the tree: a request copies what it can use into its own row, and what it computed is
copied back. So any leaf may be dropped at any time, the least recently used first.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


class _Node:
    __slots__ = ("children", "kv", "parent", "tokens", "used")

    def __init__(self, tokens: tuple[int, ...], kv: torch.Tensor | None, parent: _Node | None, used: int) -> None:
        self.tokens = tokens
        self.kv = kv
        self.parent = parent
        self.children: dict[int, _Node] = {}
        self.used = used


class PrefixTree:
    """Keys and values of token prefixes, ``[layer, K/V, kv head, token, dim]`` a node."""

    def __init__(self) -> None:
        self._root = _Node((), None, None, 0)
        self._clock = 0
        self.size = 0
        """Tokens held."""

    def match(self, tokens: Sequence[int], limit: int) -> list[torch.Tensor]:
        """Keys and values of the longest known prefix, at most ``limit`` tokens, as consecutive pieces."""
        self._clock += 1
        node, pieces, at = self._root, [], 0
        limit = min(limit, len(tokens))
        while at < limit:
            child = node.children.get(tokens[at])
            if child is None or child.kv is None:
                break
            common = min(common_length(child.tokens, tokens, at), limit - at)
            child.used = self._clock
            pieces.append(child.kv[:, :, :, :common])
            at += common
            if common < len(child.tokens):
                break
            node = child
        return pieces

    def known(self, tokens: Sequence[int]) -> int:
        """How many leading tokens are known; marks nothing as used."""
        return self._walk(tokens)[1]

    def insert(self, tokens: Sequence[int], kv: torch.Tensor) -> None:
        """Adds a prefix.

        Args:
            tokens: The whole prefix.
            kv: Its keys and values; only what is new is copied.
        """
        self._clock += 1
        node, at, inside = self._walk(tokens)
        if at == len(tokens):
            return
        if inside:
            node = self._split(node, inside)
        leaf = _Node(tuple(tokens[at:]), kv[:, :, :, at : len(tokens)].clone(), node, self._clock)
        node.children[leaf.tokens[0]] = leaf
        self.size += len(leaf.tokens)
        ancestor: _Node | None = node
        while ancestor is not None:
            ancestor.used = self._clock
            ancestor = ancestor.parent

    def shrink(self, size: int) -> None:
        """Drops the least recently used leaves until at most ``size`` tokens are held."""
        while self.size > max(size, 0):
            leaf = min(self._leaves(), key=lambda node: node.used)
            self.size -= len(leaf.tokens)
            if leaf.parent is not None:
                del leaf.parent.children[leaf.tokens[0]]

    def clear(self) -> None:
        """Drops everything."""
        self._root.children.clear()
        self.size = 0

    def _walk(self, tokens: Sequence[int]) -> tuple[_Node, int, int]:
        """The deepest node reached, the tokens covered, and how far inside that node that is (0: at its end)."""
        node, at = self._root, 0
        while at < len(tokens):
            child = node.children.get(tokens[at])
            if child is None:
                break
            common = common_length(child.tokens, tokens, at)
            at += common
            node = child
            if common < len(child.tokens):
                return node, at, common
        return node, at, 0

    def _split(self, node: _Node, at: int) -> _Node:
        """Cuts a node in two and returns the upper part. Copies, so that dropping one part frees its memory."""
        assert node.kv is not None
        assert node.parent is not None
        upper = _Node(node.tokens[:at], node.kv[:, :, :, :at].clone(), node.parent, node.used)
        node.parent.children[node.tokens[0]] = upper
        node.tokens, node.kv, node.parent = node.tokens[at:], node.kv[:, :, :, at:].clone(), upper
        upper.children[node.tokens[0]] = node
        return upper

    def _leaves(self) -> list[_Node]:
        stack, leaves = list(self._root.children.values()), []
        while stack:
            node = stack.pop()
            if node.children:
                stack.extend(node.children.values())
            else:
                leaves.append(node)
        return leaves


def common_length(piece: Sequence[int], tokens: Sequence[int], at: int = 0) -> int:
    """How many tokens of ``piece`` equal those of ``tokens`` from index ``at`` on."""
    length = min(len(piece), len(tokens) - at)
    for i in range(length):
        if piece[i] != tokens[at + i]:
            return i
    return length
