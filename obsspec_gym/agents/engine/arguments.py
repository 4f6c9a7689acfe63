"""What every engine checks of a request before anything is queued."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.types import TokenIds


def as_token_ids(name: str, ids: Sequence[int]) -> TokenIds:
    """Token ids as plain integers, whatever integers they came as.

    Args:
        name: What they are, for the message.
        ids: Python's, NumPy's or torch's integers.

    Raises:
        InvalidArgumentError: If one is no integer.
    """
    try:
        return tuple(map(operator.index, ids))
    except TypeError as error:
        raise InvalidArgumentError(f"token ids of the {name} must be integers: {error}") from error


def check_vocabulary(name: str, ids: TokenIds, vocabulary: int) -> None:
    """Raises for token ids outside the vocabulary."""
    if ids and not (min(ids) >= 0 and max(ids) < vocabulary):
        wrong = next(token for token in ids if not 0 <= token < vocabulary)
        raise InvalidArgumentError(f"token ids of the {name} must be in [0, {vocabulary}), got {wrong}")


def check_prompt(prompt: TokenIds, context: int, vocabulary: int) -> None:
    """Raises for a prompt that is empty, leaves no room in the context, or has token ids outside the vocabulary."""
    if not prompt:
        raise InvalidArgumentError("the prompt must have at least one token, got none")
    if len(prompt) >= context:
        raise InvalidArgumentError(
            f"the prompt must be shorter than the context of {context} tokens, got {len(prompt)}"
        )
    check_vocabulary("prompt", prompt, vocabulary)


def check_seed(seed: int) -> None:
    """Raises for a seed outside [0, 2**63)."""
    if not 0 <= seed < 2**63:
        raise InvalidArgumentError(f"the seed must be in [0, 2**63), got {seed}")
