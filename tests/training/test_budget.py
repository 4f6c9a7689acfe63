"""An episode has so many tokens, and no more."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from obsspec_gym.agents.engine.base import EngineLoad
from obsspec_gym.agents.engine.transformers import TransformersEngine
from obsspec_gym.agents.history import History
from obsspec_gym.agents.lm_policy import LMPolicy
from obsspec_gym.agents.policy import Served
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.training.budget import BudgetedPolicy
from obsspec_gym.types import Completion, EpisodeId, FinishReason, MalformedCall, Priority, Sampling


@pytest.fixture
def policy(pretrained: Any, tokenizer: Any) -> Iterator[LMPolicy]:
    with TransformersEngine(pretrained, driver="inline") as engine:
        yield LMPolicy(engine, tokenizer, sampling=Sampling(max_tokens=16))


def start(policy: LMPolicy) -> History:
    return History.start(EpisodeId("t"), "Which digit?", policy.encode_observation(None, "Which digit?"))


def later(policy: LMPolicy) -> History:
    """A history with one turn behind it."""
    acted = start(policy).act("cat n", policy.encode_action("cat n"))
    return acted.observe("1\n[exit 0] ~", policy.encode_observation(acted, "1\n[exit 0] ~"))


def generate(policy: Any, history: History, **options: Any) -> Completion:
    async def run() -> Completion:
        return await policy.generate(history, seed=7, **options)

    return asyncio.run(run())


def test_what_is_left_bounds_a_completion_and_changes_nothing_else(policy: LMPolicy) -> None:
    history = later(policy)
    whole = generate(policy, history)
    used = history.length - history.root.length
    assert len(whole.token_ids) > 1
    for room in range(1, len(whole.token_ids) + 2):
        limited = BudgetedPolicy(policy, used + room)
        completion = generate(limited, history)
        assert completion.token_ids == whole.token_ids[:room]
        if room < len(whole.token_ids):
            assert completion.finish_reason is FinishReason.LENGTH
            assert isinstance(limited.parse(completion), MalformedCall)
        else:
            assert completion == whole


@pytest.mark.parametrize("priority", list(Priority))
def test_without_room_the_generation_has_failed(policy: LMPolicy, priority: Priority) -> None:
    history = later(policy)
    used = history.length - history.root.length
    with pytest.raises(InvalidArgumentError, match=f"{used} tokens leave no room within its budget of {used}"):
        generate(BudgetedPolicy(policy, used), history, priority=priority)


def test_a_full_context_is_told_the_same_way(policy: LMPolicy) -> None:
    tokens = policy.encode_observation(None, "x" * 300)

    async def run() -> bool:
        generation = BudgetedPolicy(policy, 64).generate(History.start(EpisodeId("t"), "x" * 300, tokens), seed=0)
        return generation.failed()

    assert asyncio.run(run())


def test_it_encodes_as_the_policy_does(policy: LMPolicy) -> None:
    limited = BudgetedPolicy(policy, 64)
    assert limited.addressed_noise
    assert isinstance(limited, Served)  # or the selector would take the engine for an idle one
    assert limited.load() == policy.load() != EngineLoad()
    assert limited.encode_action("ls") == policy.encode_action("ls")
    assert limited.encode_observation(None, "Hello") == policy.encode_observation(None, "Hello")


def test_a_budget_is_positive(policy: LMPolicy) -> None:
    with pytest.raises(InvalidArgumentError, match="at least 1 token, got 0"):
        BudgetedPolicy(policy, 0)
