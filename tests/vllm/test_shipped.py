"""The shipped pair on vLLM: policy and world model, in real terminals."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed here: make test-vllm")

from obsspec_gym.agents.engine.vllm import VLLMEngine
from obsspec_gym.agents.lm_policy import load_policy
from obsspec_gym.agents.loading import SHIPPED
from obsspec_gym.agents.world_model import load_world_model
from obsspec_gym.envs.sandbox.bubblewrap import bubblewrap_available
from obsspec_gym.envs.tasks import get_suite
from obsspec_gym.envs.vector import TerminalVectorEnv
from obsspec_gym.speculation.collector import Collection, collect
from obsspec_gym.speculation.comparison import compare
from obsspec_gym.speculation.selector import FixedSelector, Off
from obsspec_gym.speculation.slot import Episode
from obsspec_gym.types import EpisodeId

SANDBOX = "bubblewrap" if bubblewrap_available() is None else "local"


@pytest.fixture(scope="module")
def engines() -> Iterator[tuple[Any, Any]]:
    """Policy and world model, each on an engine of its own."""
    with VLLMEngine(SHIPPED / "policy") as policy, VLLMEngine(SHIPPED / "world_model") as world_model:
        yield policy, world_model


def roll_out(engines: tuple[Any, Any], speculate: bool) -> Collection:
    suite = get_suite("basics")
    tasks = [suite.task(index) for index in range(4)]
    episodes = [Episode(EpisodeId(t.id, s), options={"task": t, "sample": s}) for t in tasks for s in range(2)]
    envs = TerminalVectorEnv(4, suite=suite, sandbox=SANDBOX)
    model = load_world_model("cascade", engine=engines[1]) if speculate else None
    try:
        return collect(
            envs,
            episodes,
            load_policy("shipped", engine=engines[0]),
            model,
            FixedSelector(2, 2) if speculate else Off(),
            run_seed=3,
        )
    finally:
        envs.close()
        if model is not None:
            model.close()


def test_rollouts_are_the_same_with_speculation(engines: tuple[Any, Any]) -> None:
    sequential, speculative = roll_out(engines, False), roll_out(engines, True)
    comparison = compare(sequential.trajectories, speculative.trajectories)
    assert comparison.actions_identical, comparison.summary()
    assert comparison.turns > 20
    assert any(turn.hit for turn in speculative.turns)
    assert sum(trajectory.reward for trajectory in sequential.trajectories) >= 2


def test_the_command_line_takes_the_engine_by_name(tmp_path: Path) -> None:
    """``obsspec rollout --engine vllm``."""
    command = [sys.executable, "-m", "obsspec_gym.cli", "rollout", "--engine", "vllm", "--episodes", "2"]
    command += ["--world-model", "memory", "--sandbox", SANDBOX, "--out", str(tmp_path), "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert json.loads(ended.stdout.splitlines()[-1])["rollouts"] == 2
