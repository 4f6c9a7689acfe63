"""Suites by name."""

from __future__ import annotations

from obsspec_gym.envs.tasks.agentbench import AgentBenchSuite
from obsspec_gym.envs.tasks.generated import BASICS, FAMILIES, GeneratedSuite, Split
from obsspec_gym.envs.tasks.harbor import HarborSuite
from obsspec_gym.envs.tasks.task import Suite
from obsspec_gym.errors import InvalidArgumentError

_GENERATED = {"basics": BASICS, "terminal": FAMILIES}


def suite_names() -> list[str]:
    """Every name that :func:`get_suite` knows."""
    return [
        base + suffix
        for suite, families in _GENERATED.items()
        for suffix in ("", ":words", ":templates")
        for base in (suite, *(f"{suite}/{family}" for family in families))
    ]


def get_suite(name: str, *, work: float = 1.0) -> Suite:
    """The suite of a name.

    ``terminal`` has all generated families and ``terminal/FAMILY`` one; ``basics`` has the first four of them only.
    ``:words`` and ``:templates`` are their splits with held-out words and held-out phrasings. Indices in
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
    suite, _, family = base.partition("/")
    return GeneratedSuite([family] if family else list(_GENERATED[suite]), Split(split), work=work, name=name)
