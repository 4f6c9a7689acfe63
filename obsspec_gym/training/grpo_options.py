"""The section ``grpo`` of a configuration as TRL's ``GRPOConfig``."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

from trl.trainer.grpo_config import GRPOConfig

from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.training.arguments import check_config
from obsspec_gym.training.config import as_declared

_DEFAULTS: dict[str, Any] = {
    "output_dir": "runs/train",
    "logging_steps": 1,
    "report_to": "none",
    "disable_tqdm": True,  # the command line shows its own progress
}
_ON_CPU: dict[str, Any] = {"use_cpu": True, "bf16": False, "fp16": False, "tf32": None}


def make_grpo_config(options: Mapping[str, Any]) -> tuple[GRPOConfig, str | None]:
    """TRL's configuration.

    Returns:
        It, as for a CPU where this machine has not the devices that it asks for; and what it lacks, or ``None``.

    Raises:
        InvalidArgumentError: If a name or a value is not what is expected, or TRL refuses it on any machine.
    """
    complete = typed(options)
    try:
        return _build(complete), None
    except InvalidArgumentError as error:
        return _build(complete | _ON_CPU), str(error)


def typed(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with their defaults, as the types that ``GRPOConfig`` declares (``1e-4`` is text in YAML).

    Raises:
        InvalidArgumentError: If there is no such field, or a value is not of its type.
    """
    hints = typing.get_type_hints(GRPOConfig)
    fields = {field.name: hints[field.name] for field in dataclasses.fields(GRPOConfig) if field.init}
    return as_declared({**_DEFAULTS, **options}, fields, "grpo.")


def _build(options: dict[str, Any]) -> GRPOConfig:
    try:
        config = GRPOConfig(**options)
    except (ValueError, TypeError, NotImplementedError, ImportError, RuntimeError) as error:
        raise InvalidArgumentError(f"grpo: {error}") from None
    check_config(config, {})
    return config
