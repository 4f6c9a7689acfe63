"""Suites by name."""

from __future__ import annotations

from obsspec_gym.envs.tasks.generated import FAMILIES, GeneratedSuite, Split
from obsspec_gym.envs.tasks.task import Suite
from obsspec_gym.errors import InvalidArgumentError


def suite_names() -> list[str]:
    """Every name that :func:`get_suite` knows."""
    bases = ["basics", *(f"basics/{family}" for family in FAMILIES)]
    return [base + suffix for suffix in ("", ":words", ":templates") for base in bases]


def get_suite(name: str, *, work: float = 1.0) -> Suite:
    """The suite of a name.

    ``basics`` has all generated families and ``basics/FAMILY`` one; ``:words`` and ``:templates`` are their splits
    with held-out words and held-out phrasings. Indices in
    :data:`~obsspec_gym.envs.tasks.generated.EVALUATION` are for evaluation in every one of them.

    Args:
        name: One of :func:`suite_names`.
        work: Scales how long slow commands take; observations stay the same.

    Raises:
        InvalidArgumentError: If there is no such suite; the message lists those that exist.

    Example:
        >>> get_suite("basics/tests:words").task(0).id
        'basics/tests:words/0'
    """
    if name not in suite_names():
        raise InvalidArgumentError(f"unknown suite {name!r}; there are {', '.join(suite_names())}")
    base, _, split = name.partition(":")
    _, _, family = base.partition("/")
    return GeneratedSuite([family] if family else list(FAMILIES), Split(split), work=work, name=name)
