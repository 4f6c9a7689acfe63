"""``obsspec suite check``: which tasks of a suite can be made, and which its experts solve."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from obsspec_gym.errors import InvalidArgumentError

if TYPE_CHECKING:
    from rich.table import Table

    from obsspec_gym.envs.check import TaskCheck

app = typer.Typer(help="Look after task suites.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def suite() -> None:
    """Look after task suites."""


@app.command("check")
def check_command(
    name: Annotated[
        str,
        typer.Argument(metavar="SUITE", help="harbor:DIRECTORY, agentbench:FILE, or a generated suite's name."),
    ],
    sandbox: Annotated[str, typer.Option(help="bubblewrap, docker, or local (no isolation).")] = "bubblewrap",
    first: Annotated[int, typer.Option(min=0, help="Index of the first task.")] = 0,
    count: Annotated[int | None, typer.Option(min=1, help="How many tasks; all by default.")] = None,
    before: Annotated[bool, typer.Option(help="Also hand in at once: that must not be rewarded.")] = True,
    workers: Annotated[int, typer.Option(min=1, help="How many tasks at a time.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")] = False,
) -> None:
    """Make every task, hand in at once, then let its expert solve it; count what came of it, by cause."""
    result = check(name, sandbox=sandbox, first=first, count=count, before=before, workers=workers)
    if as_json:
        print(json.dumps(result, ensure_ascii=False), flush=True)


def check(name: str, *, sandbox: str, first: int, count: int | None, before: bool, workers: int) -> dict[str, Any]:
    """Checks a suite's tasks, prints what came of them, and returns what ``--json`` prints.

    Args:
        name: The suite.
        sandbox: Kind of sandbox.
        first: Index of the first task.
        count: How many tasks; all by default, 20 of a suite without end.
        before: Whether to try handing in at once.
        workers: How many tasks at a time.

    Raises:
        InvalidArgumentError: If there is no such suite, kind or task.
    """
    from rich.console import Console

    from obsspec_gym.envs.check import check_suite, summary
    from obsspec_gym.envs.sandbox import KINDS
    from obsspec_gym.envs.tasks import get_suite

    if sandbox not in KINDS:
        raise InvalidArgumentError(f"sandbox must be one of {', '.join(KINDS)}, got {sandbox!r}")
    suite = get_suite(name)
    if not first < len(suite):
        raise InvalidArgumentError(f"suite {name!r} has {len(suite)} tasks, there is no index {first}")
    last = min(len(suite), first + (count or (20 if len(suite) > 10_000 else len(suite))))
    console = Console(stderr=True)

    def report(done: TaskCheck) -> None:
        console.print(_line(done), markup=False, highlight=False, soft_wrap=True)

    checks = check_suite(suite, range(first, last), sandbox, before=before, workers=workers, report=report)
    result = summary(checks)
    Console().print(_table(name, sandbox, result))
    return {"suite": name, "sandbox": sandbox, **result, "checks": [asdict(done) for done in checks]}


def _line(done: TaskCheck) -> str:
    name = done.task_id or f"#{done.index}"
    if done.refused:
        return f"{name}  refused: {done.refused}"
    rewards = [
        f"{when} {value:g}" for when, value in (("before", done.before), ("after", done.after)) if value is not None
    ]
    return "  ".join([name, ", ".join(rewards), done.reason]).rstrip()


def _table(name: str, sandbox: str, result: dict[str, Any]) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=f"{escape(name)} on {sandbox}", title_justify="left", title_style="bold", show_header=False)
    table.add_column("")
    table.add_column("", justify="right")
    for key, value in result.items():
        if isinstance(value, dict):
            for cause, number in value.items():
                table.add_row(f"  {escape(key.partition('_')[0])}: {escape(cause)}", str(number))
        else:
            table.add_row(key.replace("_", " "), str(value))
    return table
