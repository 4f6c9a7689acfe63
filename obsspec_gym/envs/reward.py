"""Rewards as verifiers write them."""

from __future__ import annotations

import json
import math


def read_reward(text: str) -> tuple[float, str]:
    """The reward in a file that a verifier wrote, and what is wrong with it; nothing if nothing is.

    A number, or a JSON object of numbers: the one under ``reward``, or else the mean of all.

    Example:
        >>> read_reward("0.5\\n"), read_reward('{"reward": 1, "style": 0.2}'), read_reward('{"a": 1, "b": 0}')
        ((0.5, ''), (1.0, ''), (0.5, ''))
    """
    try:
        value = json.loads(text)
        if isinstance(value, dict):
            value = value["reward"] if "reward" in value else sum(map(_number, value.values())) / len(value)
        return _number(value), ""
    except (ValueError, TypeError, KeyError, ArithmeticError):
        return 0.0, f"\n[broken reward, not a finite number: {text[:100]!r}]"


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"expected a finite number, got {value!r}")
    return float(value)
