"""Suites by name."""

from __future__ import annotations

from obsspec_gym.envs.tasks.agentbench import AgentBenchSuite
from obsspec_gym.envs.tasks.generated import FAMILIES, GeneratedSuite, Split
from obsspec_gym.envs.tasks.harbor import HarborSuite
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

    ``harbor:PATH`` is a directory of Harbor tasks (:class:`~obsspec_gym.envs.tasks.harbor.HarborSuite`),
    ``agentbench:PATH`` a file of AgentBench's (:class:`~obsspec_gym.envs.tasks.agentbench.AgentBenchSuite`).

    Args:
        name: One of :func:`suite_names`, or one of these.
        work: Scales how long slow commands take; observations stay the same.

    Raises:
        InvalidArgumentError: If there is no such suite; the message lists those that exist.

    Example:
        >>> get_suite("basics/tests:words").task(0).id
        'basics/tests:words/0'
    """
    kind, _, path = name.partition(":")
    if kind == "harbor" and path:
        return HarborSuite(path)
    if kind == "agentbench" and path:
        return AgentBenchSuite(path)
    if name not in suite_names():
        known = ", ".join([*suite_names(), "harbor:PATH", "agentbench:PATH"])
        raise InvalidArgumentError(f"unknown suite {name!r}; there are {known}")
    base, _, split = name.partition(":")
    _, _, family = base.partition("/")
    return GeneratedSuite([family] if family else list(FAMILIES), Split(split), work=work, name=name)
