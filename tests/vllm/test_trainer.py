"""``ObsSpecGRPOTrainer(engine="vllm")``: real GRPO steps whose rollouts vLLM generates."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed here: make test-vllm")
pytest.importorskip("trl")

import torch

from obsspec_gym.agents.engine.vllm import VLLMEngine
from obsspec_gym.agents.world_model.memory import MemoryWorldModel
from tests.training.conftest import make, model, pretrained, tokenizer  # noqa: F401 - fixtures
from tests.training.trainers import greedy, moved, reference, rows, tokens, weights


def test_it_trains_and_vllm_follows(make: Any) -> None:  # noqa: F811
    trainer = make(engine="vllm", max_steps=2, learning_rate=1e-2, world_model=MemoryWorldModel())
    assert isinstance(trainer.engine, VLLMEngine)
    assert trainer.engine.capabilities.addressed_noise
    before = weights(trainer)
    trainer.train()
    assert moved(before, weights(trainer))
    inputs = trainer.inputs
    mask = inputs["completion_mask"] * inputs.get("tool_mask", 1)
    assert mask.sum() > 0
    # What vLLM says of its tokens is what the trainer's own forward pass says of them.
    torch.testing.assert_close(
        trainer.logps.detach() * mask, inputs["sampling_per_token_logps"] * mask, atol=1e-4, rtol=0
    )
    prompt = tokens(trainer.batch, 0, "prompt")
    assert greedy(trainer, prompt) == reference(trainer, prompt)
    assert trainer.engine.weights_version >= 3
    assert len(rows()) == len(trainer.trajectories)
