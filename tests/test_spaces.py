from __future__ import annotations

import json
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Tuple
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.vector.utils import (
    batch_differing_spaces,
    batch_space,
    concatenate,
    create_empty_array,
    iterate,
)
from hypothesis import given
from hypothesis import strategies as st

from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.spaces import HARMLESS_COMMANDS, TerminalText


class Echo(gym.Env[str, str]):
    """Says what it is told."""

    observation_space = TerminalText(allow_nul=True)
    action_space = TerminalText()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        return f"hello {seed} \U0001f600", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return action * 2, 0.0, False, False, {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", True),
        ("ls -l | sort # \U0001f600", True),
        ("a\x1b[0m\r\n\x7f", True),
        ("a" * 1_000_000, True),
        ("a" * 1_000_001, False),
        ("é" * 500_001, False),
        ("a\0b", False),
        ("\ud800", False),
        (b"ls", False),
        (3, False),
        (None, False),
    ],
)
def test_contains(text: object, expected: bool) -> None:
    assert (text in TerminalText()) is expected


def test_programs_may_print_nul() -> None:
    assert "a\0b" in TerminalText(allow_nul=True)


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
def test_contains_every_text_without_nul_and_surrogates(text: str) -> None:
    assert text in TerminalText()
    space = TerminalText()
    assert space.from_jsonable(json.loads(json.dumps(space.to_jsonable([text])))) == [text]


def test_samples_are_harmless_and_seeded() -> None:
    samples = [TerminalText(seed=3).sample() for _ in range(3)]
    assert len(set(samples)) == 1
    space = TerminalText(seed=0)
    drawn = [space.sample() for _ in range(100)]
    assert set(drawn) == set(HARMLESS_COMMANDS)
    assert all(text in space for text in drawn)
    space.seed(0)
    assert [space.sample() for _ in range(100)] == drawn


def test_a_mask_means_nothing() -> None:
    with pytest.raises(InvalidArgumentError, match="neither mask nor probability"):
        TerminalText().sample(mask=np.ones(3))


def test_no_room_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="got 0"):
        TerminalText(0)


def test_equality_and_repr() -> None:
    assert TerminalText() == TerminalText(seed=1)
    assert TerminalText() != TerminalText(2_000)
    assert TerminalText() != TerminalText(allow_nul=True)
    assert TerminalText() != gym.spaces.Discrete(2)
    assert len({TerminalText(), TerminalText(), TerminalText(2_000)}) == 2
    for space in (TerminalText(), TerminalText(2_000, allow_nul=True)):
        assert eval(repr(space)) == space
        assert pickle.loads(pickle.dumps(space)) == space
    assert not TerminalText().is_np_flattenable


def test_batches() -> None:
    space = TerminalText(seed=0)
    batch = batch_space(space, 3)
    assert isinstance(batch, Tuple)
    assert batch == batch_differing_spaces([TerminalText()] * 3)
    texts = concatenate(space, ["a", "\U0001f600", ""], create_empty_array(space, 3))
    assert texts == ("a", "\U0001f600", "")
    assert texts in batch
    assert create_empty_array(space, 3) in batch
    assert list(iterate(batch, texts)) == list(texts)
    assert batch.sample() in batch


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_gymnasium_vector_environments_carry_texts_unchanged(kind: str) -> None:
    makers = [Echo, Echo, Echo]
    envs = SyncVectorEnv(makers) if kind == "sync" else AsyncVectorEnv(makers, shared_memory=False, context="spawn")
    try:
        first, _ = envs.reset(seed=5)
        assert first == ("hello 5 \U0001f600", "hello 6 \U0001f600", "hello 7 \U0001f600")
        second, *_ = envs.step(("a", "long " * 1_000, "é\x1b"))
        assert second == ("aa", "long " * 2_000, "é\x1bé\x1b")
        assert first[0] == "hello 5 \U0001f600"
        assert envs.action_space.sample() in envs.action_space
    finally:
        envs.close()


def test_shared_memory_is_refused_rather_than_losing_texts() -> None:
    with pytest.raises(ValueError, match="shared_memory=False"):
        AsyncVectorEnv([Echo], shared_memory=True, context="spawn")
