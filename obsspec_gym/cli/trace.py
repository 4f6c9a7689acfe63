"""``obsspec trace``: what a run's trace says, as tables and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from obsspec_gym.cli.files import output_directory
from obsspec_gym.cli.tables import measures_table, percent, seconds, shown
from obsspec_gym.errors import InvalidArgumentError, MissingExtraError
from obsspec_gym.speculation.agents import installed
from obsspec_gym.speculation.timeline import draw_timeline
from obsspec_gym.speculation.trace import Trace, read_trace
from obsspec_gym.speculation.trace_summary import Part, Summary, summarise

_ROWS = 12  # of a table; what comes after took the least time, and is in the JSON


def show_trace(path: Path, out: Path | None, episodes: int) -> dict[str, Any]:
    """Prints the summary of a trace, and draws it if asked to; returns what ``--json`` prints.

    Args:
        path: The trace.
        out: Where the picture goes; ``None`` for none.
        episodes: How many episodes are drawn at most.

    Raises:
        InvalidArgumentError: If that is no trace, there is nothing to draw, or nothing can be written there.
        MissingExtraError: If a picture is asked for and matplotlib is not installed.
    """
    if out is not None and not installed("matplotlib"):
        raise MissingExtraError("matplotlib", "lm")
    trace = read_trace(path)
    summary = summarise(trace)
    console = Console()
    _print(console, path, summary)
    if out is not None:
        _draw(trace, path, out, episodes)
        console.print(f"Drawn: {out}", highlight=False, markup=False, soft_wrap=True)
    return summary.to_json()


def _draw(trace: Trace, path: Path, out: Path, episodes: int) -> None:
    if not trace.turns:
        raise InvalidArgumentError(f"{path} has no turns, so there is nothing to draw")
    output_directory(out.parent)
    try:
        draw_timeline({path.name.split(".")[0]: trace.turns}, out, episodes=episodes)
    except OSError as error:
        raise InvalidArgumentError(f"nothing can be written to {out}: {error.strerror}") from error


def _print(console: Console, path: Path, summary: Summary) -> None:
    console.print(measures_table(summary.measures, title=path.name))
    if not summary.measures.turns:
        console.print("The run had no turns.")
        return
    fates = ", ".join(f"{count} {fate}" for fate, count in summary.fates.items())
    console.print(f"Futures: {fates}", highlight=False, markup=False)
    console.print(_table("By command", summary.by_kind))
    console.print(_table("By what the selector said", summary.by_reason))


def _table(title: str, parts: dict[str, Part]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("")
    for heading in ("turns", "tool", "match", "hit", "hidden", "discarded tokens"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, part in list(parts.items())[:_ROWS]:
        table.add_row(
            escape(name),
            str(part.turns),
            seconds(part.tool_seconds),
            shown(part.match_rate, percent),
            shown(part.hit_rate, percent),
            seconds(part.hidden_seconds),
            str(part.discarded_tokens),
        )
    if len(parts) > _ROWS:
        table.add_row(f"and {len(parts) - _ROWS} more", *[""] * 6)
    return table
