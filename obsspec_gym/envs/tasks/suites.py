"""Suites by name."""

from __future__ import annotations

import re

from obsspec_gym.envs.tasks.agentbench import AgentBenchSuite
from obsspec_gym.envs.tasks.generated import BASICS, FAMILIES, GeneratedSuite, Split
from obsspec_gym.envs.tasks.harbor import HarborSuite
from obsspec_gym.envs.tasks.task import Suite
from obsspec_gym.errors import InvalidArgumentError

_GENERATED = {"basics": BASICS, "terminal": FAMILIES}
_GENERATED_NAME = re.compile(r"(?P<suite>\w+)(/(?P<families>\w+(\+\w+)*))?(:(?P<split>words|templates))?")


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

    ``terminal`` has all generated families and ``terminal/FAMILY`` one (``terminal/ONE+ANOTHER`` two, and so on);
    ``basics`` has the first four of them only.
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
    found = _GENERATED_NAME.fullmatch(name)
    known = _GENERATED.get(found["suite"], {}) if found else {}
    families = found["families"].split("+") if found and found["families"] else list(known)
    if found is None or not known or not known.keys() >= set(families) or len(set(families)) < len(families):
        names = ", ".join([*suite_names(), "harbor:PATH", "agentbench:PATH"])
        raise InvalidArgumentError(f"unknown suite {name!r}; there are {names}")
    return GeneratedSuite(families, Split(found["split"] or ""), work=work, name=name)
