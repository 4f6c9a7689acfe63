"""World models by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from obsspec_gym.agents.engine.base import Engine
from obsspec_gym.agents.loading import context_length, load_engine, load_tokenizer, model_directory
from obsspec_gym.agents.world_model.base import WorldModel
from obsspec_gym.agents.world_model.cascade import CascadeWorldModel
from obsspec_gym.agents.world_model.confidence import Confidence
from obsspec_gym.agents.world_model.lm import LMWorldModel
from obsspec_gym.agents.world_model.memory import MemoryWorldModel

if TYPE_CHECKING:
    from obsspec_gym.agents.engine.transformers import DriverName, DtypeName

MEMORY, CASCADE = "memory", "cascade"


def load_world_model(
    source: str | Path = "cascade",
    *,
    engine: Engine | str = "transformers",
    driver: DriverName = "thread",
    dtype: DtypeName = "float32",
    engine_options: Mapping[str, Any] | None = None,
    max_tokens: int | None = None,
    sure: float = 0.5,
    min_probability: float = 0.0,
    patience: float | None = None,
) -> WorldModel:
    """Loads a world model.

    Args:
        source: ``"memory"``; ``"shipped"`` (the language model that comes with this package); a directory with a
            language model that was trained on the compact dialogue; ``"memory+DIRECTORY"`` (memory first, that model
            on a miss); or ``"cascade"`` (the same with the shipped one).
        engine: Which engine to load on a language model's directory. Or one that generates instead; it stays the
            caller's.
        driver: Who runs the embedded engine's steps.
        dtype: What the embedded engine computes in.
        engine_options: Further arguments of the engine that is loaded, such as ``device`` and ``niceness``.
        max_tokens: Upper bound on a language model's predictions; by default 256, or half of a smaller context.
        sure: See :class:`CascadeWorldModel`.
        min_probability: See :class:`CascadeWorldModel`; a language model alone becomes a cascade of one for it.
        patience: See :class:`CascadeWorldModel`.

    Raises:
        InvalidArgumentError: If there is no such model.
        MissingExtraError: If a language model is asked for, and torch or transformers is not installed.

    Example:
        >>> load_world_model("memory").close()
    """
    remembers, directory = world_model_parts(source)
    models: list[WorldModel] = [MemoryWorldModel()] if remembers else []
    if directory is not None:
        tokenizer, context = load_tokenizer(directory), context_length(directory)
        models.append(
            LMWorldModel(
                load_engine(directory, engine=engine, driver=driver, dtype=dtype, **(engine_options or {}))
                if isinstance(engine, str)
                else engine,
                tokenizer,
                context_length=context,
                max_tokens=max_tokens if max_tokens is not None else min(256, context // 2),
                owns_engine=isinstance(engine, str),
                confidence=Confidence.load(directory),
            )
        )
    if len(models) == 1 and min_probability == 0 and patience is None:
        return models[0]
    return CascadeWorldModel(models, sure=sure, min_probability=min_probability, patience=patience)


def world_model_parts(source: str | Path) -> tuple[bool, Path | None]:
    """What a world model's name stands for.

    Args:
        source: As in :func:`load_world_model`.

    Returns:
        Whether there is a memory, and the directory of the language model, if there is one.

    Raises:
        InvalidArgumentError: If there is no such model.

    Example:
        >>> world_model_parts("memory")
        (True, None)
    """
    name = str(source)
    if name == MEMORY:
        return True, None
    remembers = name == CASCADE or name.startswith(f"{MEMORY}+")
    model = "shipped" if name == CASCADE else name.removeprefix(f"{MEMORY}+")
    return remembers, model_directory(model, "world_model")
