"""World models by name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from obsspec_gym.agents.engine.base import Engine
from obsspec_gym.agents.loading import context_length, load_engine, load_tokenizer, model_directory
from obsspec_gym.agents.world_model.base import WorldModel
from obsspec_gym.agents.world_model.cascade import CascadeWorldModel
from obsspec_gym.agents.world_model.lm import LMWorldModel
from obsspec_gym.agents.world_model.memory import MemoryWorldModel

if TYPE_CHECKING:
    from obsspec_gym.agents.engine.transformers import DriverName, DtypeName


def load_world_model(
    source: str | Path = "cascade",
    *,
    engine: Engine | None = None,
    driver: DriverName = "thread",
    dtype: DtypeName = "float32",
    max_tokens: int | None = None,
    sure: float = 0.5,
    min_probability: float = 0.0,
    patience: float | None = None,
) -> WorldModel:
    """Loads a world model.

    Args:
        source: ``"memory"``; ``"shipped"`` (the language model that comes with this package); ``"cascade"``
            (memory first, the shipped model on a miss); or a directory with a language model that was trained on
            the compact dialogue.
        engine: Generates instead of an embedded engine on the model's directory; it stays the caller's.
        driver: Who runs the embedded engine's steps.
        dtype: What the embedded engine computes in.
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
    memory = [MemoryWorldModel()] if source in ("memory", "cascade") else []
    models: list[WorldModel] = [*memory]
    if source != "memory":
        directory = model_directory("shipped" if source == "cascade" else source, "world_model")
        tokenizer, context = load_tokenizer(directory), context_length(directory)
        models.append(
            LMWorldModel(
                engine if engine is not None else load_engine(directory, driver=driver, dtype=dtype),
                tokenizer,
                context_length=context,
                max_tokens=max_tokens if max_tokens is not None else min(256, context // 2),
                owns_engine=engine is None,
            )
        )
    if len(models) == 1 and min_probability == 0 and patience is None:
        return models[0]
    return CascadeWorldModel(models, sure=sure, min_probability=min_probability, patience=patience)
