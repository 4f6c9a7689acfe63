"""What of TRL's options can be honoured, checked before anything is loaded."""

from __future__ import annotations

from typing import Any, get_args

from obsspec_gym.agents.loading import EngineName
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.types import Sampling

ENGINES = get_args(EngineName)
"""Engines that a trainer makes, by name."""

_REPLACED = ("rollout_func", "tools", "environment_factory")


def check_config(args: Any, trl_options: dict[str, Any]) -> None:
    """Refuses by name what would otherwise be ignored.

    Args:
        args: A ``GRPOConfig``, or ``None`` for TRL's defaults.
        trl_options: Further arguments of ``GRPOTrainer``.

    Raises:
        InvalidArgumentError: If an option cannot be honoured.
    """
    for name in _REPLACED:
        if trl_options.get(name):
            raise InvalidArgumentError(f"{name} cannot be combined with rollouts in environments")
    peft_config = trl_options.get("peft_config")
    if peft_config is not None and peft_config.is_prompt_learning:
        raise InvalidArgumentError(f"{type(peft_config).__name__} has no weights that an engine could merge: use LoRA")
    if args is None:
        return
    without_effect = {
        "use_vllm": (args.use_vllm, False),
        "use_transformers_continuous_batching": (args.use_transformers_continuous_batching, False),
        "min_p": (args.min_p, None),
        "repetition_penalty": (args.repetition_penalty, 1.0),
        "generation_kwargs": (args.generation_kwargs or None, None),
        "remove_unused_columns": (bool(args.remove_unused_columns), False),  # the column "task" is needed
    }
    for name, (value, default) in without_effect.items():
        if value != default:
            raise InvalidArgumentError(f"{name} must be {default} with rollouts in environments, got {value!r}")
    if not args.temperature > 0:
        raise InvalidArgumentError(f"temperature must be > 0 in training, got {args.temperature}")
    budget_of(args)


def check_engine(engine: Any) -> None:
    """Raises for an engine's name that is not known."""
    if isinstance(engine, str) and engine not in ENGINES:
        raise InvalidArgumentError(f"engine must be an engine or one of {', '.join(ENGINES)}, got {engine!r}")


def check_whole_weights(distributed_type: str) -> None:
    """Raises where no process has all weights: an engine could not be given them."""
    if distributed_type in ("FSDP", "DEEPSPEED", "MEGATRON_LM"):
        raise InvalidArgumentError(
            f"every process must hold all weights of the policy (torchrun's DDP), got {distributed_type}"
        )


def check_columns(dataset: Any) -> None:
    """Raises for a dataset that is known to have no column ``task``."""
    for part in dataset.values() if isinstance(dataset, dict) else [dataset]:
        columns = None if part is None else part.column_names
        if columns is not None and "task" not in columns:
            raise InvalidArgumentError(f"the dataset needs a column 'task', got {', '.join(columns) or 'none'}")


def budget_of(args: Any) -> int:
    """The most tokens an episode may have after its prompt.

    Args:
        args: A ``GRPOConfig``.

    Raises:
        InvalidArgumentError: If there is no bound, or not a positive one.
    """
    tokens = args.max_completion_length
    if tokens is None or tokens < 1:
        raise InvalidArgumentError(f"max_completion_length bounds an episode and must be >= 1, got {tokens}")
    return int(tokens)


def sampling_of(args: Any, max_turn_tokens: int) -> Sampling:
    """How completions are drawn, from TRL's options.

    Args:
        args: A ``GRPOConfig``.
        max_turn_tokens: Bound on one completion, in tokens.

    Raises:
        InvalidArgumentError: If a value is out of range.
    """
    try:
        return Sampling(
            temperature=args.temperature, top_k=max(args.top_k or 0, 0), top_p=args.top_p, max_tokens=max_turn_tokens
        )
    except ValueError as error:
        raise InvalidArgumentError(str(error)) from None
