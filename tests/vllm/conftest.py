"""Engines that several tests use: starting vLLM takes most of a test's time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def model() -> Any:
    """A tiny model with tied embeddings."""
    from tests.vllm.parts import tiny_model

    return tiny_model()


@pytest.fixture(scope="session")
def model_path(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That model on disk."""
    from tests.vllm.parts import saved

    return saved(model, tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def engine(model_path: Path) -> Iterator[Any]:
    """An engine on the tiny model that nobody changes the weights of."""
    from obsspec_gym.agents.engine.vllm import VLLMEngine

    with VLLMEngine(model_path, max_running=32) as engine:
        yield engine
