"""The shipped pair on vLLM: policy and world model, in real terminals."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed here: make test-vllm")

from obsspec_gym.agents.lm_policy import LMPolicy
from obsspec_gym.agents.loading import SHIPPED
from obsspec_gym.envs.sandbox.bubblewrap import bubblewrap_available
from obsspec_gym.envs.tasks import get_suite
from obsspec_gym.envs.vector import TerminalVectorEnv
from obsspec_gym.speculation.agents import Agents
from obsspec_gym.speculation.collector import Collection, collect
from obsspec_gym.speculation.comparison import compare
from obsspec_gym.speculation.selector import FixedSelector, Off
from obsspec_gym.speculation.slot import Episode
from obsspec_gym.types import EpisodeId, Sampling
from tests.vllm.parts import greedy_by_transformers

SANDBOX = "bubblewrap" if bubblewrap_available() is None else "local"
SUITE = get_suite("basics")


@pytest.fixture(scope="module")
def agents() -> Iterator[Agents]:
    """Policy and world model, each on an engine of its own; their heads are of a size that vLLM has no kernel for."""
    names = {"engine": "vllm", "world_model_engine": "vllm"}
    with Agents("shipped", "cascade", SUITE, [], max_tokens=48, **names) as agents:
        agents.start()
        yield agents


def roll_out(agents: Agents, speculate: bool) -> Collection:
    tasks = [SUITE.task(index) for index in range(4)]
    episodes = [Episode(EpisodeId(t.id, s), options={"task": t, "sample": s}) for t in tasks for s in range(2)]
    envs = TerminalVectorEnv(4, suite=SUITE, sandbox=SANDBOX)
    model = agents.make_world_model() if speculate else None
    try:
        return collect(
            envs, episodes, agents.make_policy(), model, FixedSelector(2, 2) if speculate else Off(), run_seed=3
        )
    finally:
        envs.close()
        if model is not None:
            model.close()


def test_rollouts_are_the_same_with_speculation(agents: Agents) -> None:
    sequential, speculative = roll_out(agents, False), roll_out(agents, True)
    comparison = compare(sequential.trajectories, speculative.trajectories)
    assert comparison.actions_identical, comparison.summary()
    assert comparison.turns > 20
    assert any(turn.hit for turn in speculative.turns)
    assert sum(trajectory.reward for trajectory in sequential.trajectories) >= 2


def test_padded_heads_change_nothing(agents: Agents) -> None:
    from transformers import AutoModelForCausalLM

    policy = agents.make_policy()
    assert isinstance(policy, LMPolicy)
    model = AutoModelForCausalLM.from_pretrained(SHIPPED / "policy", local_files_only=True).eval()
    prompt = policy.encode_observation(None, SUITE.task(5).instruction)

    async def main() -> Any:
        return await policy.engine.submit(prompt, Sampling(temperature=0, max_tokens=24), 0)

    completion = asyncio.run(main())
    tokens, logprobs = greedy_by_transformers(model, list(prompt), 24)
    assert completion.token_ids == tokens
    assert completion.logprobs == pytest.approx(logprobs, abs=1e-5)
