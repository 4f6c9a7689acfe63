"""Rows computed in passes: the same numbers and gradients as all at once, and less to compute."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from obsspec_gym.training.passes import alike, in_passes

VOCABULARY = 11


class Model(torch.nn.Module):
    """What a row's logprobs are depends on the row's own tokens before them, and on nothing that is masked."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(-1, 1, VOCABULARY, dtype=torch.float64))
        self.shapes: list[tuple[int, int, bool]] = []

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, kept: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.shapes.append((*ids.shape, torch.is_grad_enabled()))
        seen = (self.weight[ids] * mask).cumsum(dim=1) * mask
        return torch.sin(seen)[:, -kept:], torch.cos(seen.detach())[:, -kept:]


rows = st.lists(st.tuples(st.integers(1, 20), st.integers(0, 30), st.booleans()), min_size=1, max_size=8)


@settings(deadline=None)
@given(rows, st.booleans(), st.integers(0, 3))
def test_passes_compute_what_one_does(rows: list[tuple[int, int, bool]], all_learnt: bool, spare: int) -> None:
    prompt, kept = max(row[0] for row in rows), max(1, *(row[1] for row in rows)) + spare
    generator = torch.Generator().manual_seed(len(rows))
    ids = torch.randint(VOCABULARY, (len(rows), prompt + kept), generator=generator)
    mask = torch.zeros_like(ids)
    for row, (before, after, _) in enumerate(rows):
        mask[row, prompt - before : prompt + after] = 1
    learnt_from = None if all_learnt else torch.tensor([row[2] for row in rows])
    completion = mask[:, -kept:]
    weight = completion if learnt_from is None else completion * learnt_from[:, None]

    whole, parts = Model(), Model()
    expected = whole(ids, mask, kept)
    computed = in_passes(parts, ids, mask, kept, learnt_from)
    assert computed[1] is not None
    for one, other in zip(expected, computed, strict=True):
        torch.testing.assert_close(other * completion, one * completion)
    for logps in (expected[0], computed[0]):
        assert logps is not None
        (logps * weight).sum().backward()
    torch.testing.assert_close(parts.weight.grad, whole.weight.grad)

    at_once = sum(count * width for count, width, _ in parts.shapes)
    assert at_once <= ids.numel()
    assert at_once < 2 * int(mask.sum()) + sum(row[0] for row in rows) + len(rows) * (prompt + 1)
    if learnt_from is not None and learnt_from.any():
        assert sum(count for count, _, with_gradient in parts.shapes if with_gradient) == int(learnt_from.sum())


@given(st.lists(st.integers(1, 1000), max_size=30))
def test_nothing_in_a_part_is_less_than_half_as_long_as_its_longest(lengths: list[int]) -> None:
    parts = alike(lengths)
    assert sorted(index for part in parts for index in part) == list(range(len(lengths)))
    for part in parts:
        assert 2 * min(lengths[index] for index in part) >= max(lengths[index] for index in part)
    assert len(parts) <= 11


def test_nothing_is_computed_with_a_gradient_where_none_is_wanted() -> None:
    model = Model()
    ids = torch.zeros((2, 3), dtype=torch.long)
    with torch.no_grad():
        in_passes(model, ids, torch.ones_like(ids), 2, None)
    assert [shape[2] for shape in model.shapes] == [False]
