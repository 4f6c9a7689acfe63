"""World models for a training that can do without one."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from obsspec_gym.agents.world_model.base import WorldModel
from obsspec_gym.agents.world_model.loading import load_world_model

logger = logging.getLogger(__name__)


def load_or_do_without(source: str | Path, options: Mapping[str, Any], *, strict: bool) -> WorldModel | None:
    """Loads a world model; one that cannot be loaded costs a warning, and what it would have hidden.

    Args:
        source: What :func:`~obsspec_gym.agents.world_model.loading.load_world_model` loads.
        options: Its further arguments.
        strict: Whether to raise instead: weights that are missing or of another shape, no memory for them.

    Returns:
        The world model, the caller's to close; ``None`` if it cannot be loaded.
    """
    try:
        return load_world_model(source, **options)
    except TypeError:  # an option that there is not
        raise
    except Exception as error:
        if strict:
            raise
        reason = f"{type(error).__name__}: {error}"
        logger.warning(
            "training goes on without speculation: world model %r cannot be loaded (%s)", str(source), reason
        )
        return None
