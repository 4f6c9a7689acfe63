"""``obsspec bench``: the project's measurements, one JSON object each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape

from obsspec_gym.cli.tables import result_table
from obsspec_gym.errors import InvalidArgumentError


def run_benchmark(name: str, *, full: bool, options: dict[str, Any], echo: bool) -> dict[str, Any]:
    """Runs a benchmark and prints its measures.

    Args:
        name: Which.
        full: The larger size.
        options: For the benchmark; values may be text.
        echo: Whether to print a table for people.

    Raises:
        InvalidArgumentError: If there is no such benchmark or option.
    """
    from obsspec_gym import benchmarks

    if name not in benchmarks.names():
        raise InvalidArgumentError(f"there is no benchmark {name!r}; there are {', '.join(benchmarks.names())}")
    console = Console(stderr=True)
    if console.is_terminal:
        with console.status(f"bench {name}") as status:
            result = benchmarks.run(name, full=full, options=options, report=lambda line: status.update(escape(line)))
    else:
        result = benchmarks.run(name, full=full, options=options, report=lambda line: console.print(line, markup=False))
    if echo:
        Console().print(result_table(result, title=f"bench {name}"))
    return result


def read_options(settings: Sequence[str], **common: Any) -> dict[str, Any]:
    """The options of a benchmark from ``key=value`` words and the common ones that were given.

    Raises:
        InvalidArgumentError: If a word has no ``=``.
    """
    options = {name: value for name, value in common.items() if value is not None}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise InvalidArgumentError(f"--set takes key=value, got {setting!r}")
        options[key.replace("-", "_")] = value
    return options
