"""Measurements of this project, each one command: ``obsspec bench NAME --json``.

Every figure is a ratio or a count taken side by side in one run; absolute times of one machine mean nothing on another.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from obsspec_gym.errors import InvalidArgumentError

Report = Callable[[str], None]
"""Is told, in one line, how far a long measurement is."""

_MODULES = {
    "cotraining": "obsspec_gym.benchmarks.cotraining",
    "determinism": "obsspec_gym.benchmarks.determinism",
    "loops": "obsspec_gym.benchmarks.loops",
    "engines": "obsspec_gym.benchmarks.engines",
    "lossless": "obsspec_gym.benchmarks.lossless",
    "overhead": "obsspec_gym.benchmarks.overhead",
    "overlap": "obsspec_gym.benchmarks.overlap",
    "paper": "obsspec_gym.benchmarks.paper",
    "sandbox": "obsspec_gym.benchmarks.sandbox",
    "selectors": "obsspec_gym.benchmarks.selectors",
    "train": "obsspec_gym.benchmarks.train",
    "wrapper": "obsspec_gym.benchmarks.wrapper",
}


def names() -> list[str]:
    """The benchmarks there are."""
    return sorted(_MODULES)


def run(name: str, *, full: bool, options: dict[str, Any], report: Report) -> dict[str, Any]:
    """Runs one benchmark.

    Args:
        name: Which.
        full: The larger size instead of the one that ends within five minutes.
        options: Arguments of the benchmark's own ``run`` by name; values may be strings.
        report: Is told about progress.

    Returns:
        Its measures, in plain values, keyed in snake_case like DESIGN's measures.

    Raises:
        InvalidArgumentError: If there is no such benchmark, or no such option.
    """
    if name not in _MODULES:
        raise InvalidArgumentError(f"benchmark must be one of {', '.join(names())}, got {name!r}")
    module = importlib.import_module(_MODULES[name])
    defaults: dict[str, Any] = {**module.DEFAULTS, **(module.FULL if full else {})}
    unknown = set(options) - set(defaults)
    if unknown:
        raise InvalidArgumentError(
            f"options of benchmark {name!r} are {', '.join(sorted(defaults))}, got {', '.join(sorted(unknown))}"
        )
    given = {key: _as_type_of(defaults[key], key, value) for key, value in options.items()}
    result: dict[str, Any] = module.run(**{**defaults, **given}, report=report)
    return {"benchmark": name, **result}


def _as_type_of(default: Any, key: str, value: Any) -> Any:
    try:
        return type(default)(value)
    except (TypeError, ValueError):
        raise InvalidArgumentError(f"option {key} must be of type {type(default).__name__}, got {value!r}") from None
