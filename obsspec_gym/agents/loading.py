"""Local model directories: where the shipped ones are, and what of them is needed besides the weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from obsspec_gym.agents.tokens import Tokenizer
from obsspec_gym.errors import InvalidArgumentError, MissingExtraError

if TYPE_CHECKING:
    from obsspec_gym.agents.engine.base import Engine
    from obsspec_gym.agents.engine.transformers import DriverName, DtypeName

SHIPPED = Path(__file__).parent / "shipped"
"""Where the models that come with this package lie."""

EngineName = Literal["transformers", "vllm"]
"""Engines that are made from a model directory: the embedded one, and vLLM in this program."""


def model_directory(source: str | Path, role: Literal["policy", "world_model"]) -> Path:
    """The directory of a model.

    Args:
        source: ``"shipped"``, or a directory in the Hugging Face layout.
        role: Which of the shipped models is meant.

    Raises:
        InvalidArgumentError: If there is no model there.
    """
    directory = SHIPPED / role if source == "shipped" else Path(source)
    if not (directory / "config.json").is_file():
        expected = f"expected 'shipped' or a directory with a config.json, got {str(source)!r}"
        if source == "shipped":
            expected = f"this installation comes without its {role.replace('_', ' ')}: {directory} holds no model"
        raise InvalidArgumentError(expected)
    return directory


def load_tokenizer(directory: Path) -> Tokenizer:
    """The tokenizer of a model directory; nothing is looked for elsewhere.

    Raises:
        MissingExtraError: If transformers is not installed.
        InvalidArgumentError: If the directory holds no tokenizer.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise MissingExtraError("transformers", "lm") from error
    try:
        return cast(Tokenizer, AutoTokenizer.from_pretrained(str(directory), local_files_only=True))
    except (OSError, ValueError) as error:
        raise InvalidArgumentError(f"no tokenizer can be loaded from {directory}: {error}") from error


def context_length(directory: Path) -> int:
    """How many tokens the model can attend to, from its ``config.json``.

    Raises:
        InvalidArgumentError: If it does not say.
    """
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    length = config.get("max_position_embeddings")
    if not isinstance(length, int):
        raise InvalidArgumentError(f"{directory / 'config.json'} says no max_position_embeddings")
    return length


def load_engine(
    directory: Path,
    *,
    engine: EngineName = "transformers",
    driver: DriverName = "thread",
    dtype: DtypeName = "float32",
    **options: Any,
) -> Engine:
    """An engine on a model directory.

    Args:
        directory: The model's.
        engine: Which one.
        driver: Who runs the embedded engine's steps; vLLM has a process of its own.
        dtype: What it computes in.
        **options: Further arguments of that engine.

    Raises:
        InvalidArgumentError: If there is no such engine, or it does not compute in ``dtype``.
        MissingExtraError: If what it needs is not installed.
    """
    if engine == "transformers":
        from obsspec_gym.agents.engine.transformers import TransformersEngine

        return TransformersEngine(directory, driver=driver, dtype=dtype, **options)
    if engine != "vllm":
        raise InvalidArgumentError(f"engine must be one of {', '.join(get_args(EngineName))}, got {engine!r}")
    if dtype != "float32":
        raise InvalidArgumentError(f"vLLM computes in float32 here, got dtype={dtype!r}")
    from obsspec_gym.agents.engine.vllm import VLLMEngine

    return VLLMEngine(directory, **options)
