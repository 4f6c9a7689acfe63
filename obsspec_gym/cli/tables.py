"""What is shown at the end: one table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from obsspec_gym.speculation.metrics import Measures, Spread
from obsspec_gym.speculation.results import ExperimentResult, Mode

_NOTHING = "–"
_SPREAD = {field.name for field in dataclasses.fields(Spread)}

Format = Callable[[Any], str]


def shown(value: float | None, form: Format) -> str:
    """A measure, or a dash where there is none."""
    return _NOTHING if value is None else form(value)


def percent(value: float) -> str:
    """A ratio, for people."""
    return f"{100 * value:.0f} %"


def seconds(value: float) -> str:
    """A time, for people."""
    return f"{value:.2f} s"


def _plain(value: float) -> str:
    return f"{value:.2f}"


def _count(value: float) -> str:
    return f"{value:.0f}"


ROWS: Sequence[tuple[str, str, Format]] = (
    ("rollouts", "rollouts", _count),
    ("turns", "turns", _count),
    ("solved", "solved", percent),
    ("agent_latency", "agent latency (mean)", seconds),
    ("batch_latency", "batch latency", seconds),
    ("generation_tool_ratio", "G/T (generation / tool)", _plain),
)
"""Measures that every run has."""

SPECULATION_ROWS: Sequence[tuple[str, str, Format]] = (
    ("match_rate", "match rate", percent),
    ("time_weighted_match_rate", "  weighted by tool time", percent),
    ("nonempty_match_rate", "  where something was printed", percent),
    ("hit_rate", "hit rate", percent),
    ("prediction_lead", "prediction lead", _plain),
    ("hidden_seconds", "hidden generation", seconds),
    ("pipeline_efficiency", "pipeline efficiency", percent),
    ("discarded_tokens", "discarded tokens a rollout", _count),
)
"""Measures that mean something only where there was speculation."""

_HEADINGS = {
    Mode.SEQUENTIAL: "sequential",
    Mode.SPECULATIVE: "speculative",
    Mode.ORACLE: "oracle (same D)",
    Mode.LIMIT: "oracle (any D)",
}


def experiment_table(result: ExperimentResult, title: str = "") -> Table:
    """All modes side by side, and what the comparison found."""
    runs = {mode: result.of(mode)[0].measures for mode in _HEADINGS if result.of(mode)}
    table = Table(title=title or None, title_justify="left", title_style="bold")
    table.add_column("", no_wrap=True)
    for mode in runs:
        table.add_column(_HEADINGS[mode], justify="right", no_wrap=True)
    for name, label, form in ROWS:
        table.add_row(label, *[_cell(measures, name, form) for measures in runs.values()])
    table.add_section()
    for name, label, form in SPECULATION_ROWS:
        cells = [_NOTHING if mode is Mode.SEQUENTIAL else _cell(runs[mode], name, form) for mode in runs]
        table.add_row(label, *cells)
    table.add_section()
    ratio, share = result.agent_latency_ratio, result.share_of_d_limit
    table.add_row("agent latency saved", *_in_column(runs, Mode.SPECULATIVE, _saved(ratio)))
    table.add_row("share of the D-limit", *_in_column(runs, Mode.SPECULATIVE, _median(share, percent)))
    return table


def measures_table(measures: Measures, title: str = "") -> Table:
    """The measures of one collection."""
    table = Table(title=title or None, title_justify="left", title_style="bold", show_header=False)
    table.add_column("", no_wrap=True)
    table.add_column("", justify="right")
    for name, label, form in ROWS:
        table.add_row(label, _cell(measures, name, form))
    if measures.verified or measures.late:
        table.add_section()
        for name, label, form in SPECULATION_ROWS:
            table.add_row(label, _cell(measures, name, form))
        for source, rate in measures.match_rate_by_source.items():
            table.add_row(f"  match rate of {source}", percent(rate))
    return table


def result_table(result: Mapping[str, Any], title: str = "") -> Table:
    """All that a benchmark found: what belongs together under its name, each spread on one line."""
    table = Table(title=title or None, title_justify="left", title_style="bold", show_header=False)
    table.add_column("", no_wrap=True)
    table.add_column("", justify="right", overflow="fold")
    for label, value in _lines(result, ""):
        table.add_row(Text(label), value)
    return table


def verdict(result: ExperimentResult) -> str:
    """Whether every mode did the same, in one sentence: the first difference and its cause where not."""
    comparison = result.comparison
    if comparison.identical:
        return f"Actions identical in every mode: {comparison.turns} turns, {comparison.tokens} tokens compared."
    first = f"first difference: {comparison.differences[0]}"
    count = f"{len(comparison.differences)} of {comparison.episodes} compared episodes"
    if comparison.actions_identical:
        return f"Actions identical to identical observations; {count} saw something else on the way; {first}"
    return f"Actions differ: {count}; {first}"


def _lines(values: Mapping[str, Any], indent: str) -> Iterator[tuple[str, Text]]:
    """Labels and cells of nested results."""
    for key, value in values.items():
        label = f"{indent}{key}"
        if not isinstance(value, Mapping):
            yield label, _value(value)
        elif value.keys() == _SPREAD:
            quartiles = f"{_number(value['low'])} to {_number(value['high'])}"
            yield label, Text(f"{_number(value['median'])} ({quartiles}, {value['repeats']} repeats)")
        else:
            yield label, Text("")
            yield from _lines(value, f"{indent}  ")


def _value(value: Any) -> Text:
    if isinstance(value, list) and any(isinstance(each, Mapping | list) for each in value):
        return Text(f"{len(value)} entries")
    if isinstance(value, list):
        return Text("\n".join(map(_number, value)) or _NOTHING, justify="left")
    return Text(_number(value))


def _number(value: Any) -> str:
    if value is None:
        return _NOTHING
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _cell(measures: Measures, name: str, form: Format) -> str:
    return shown(measures.to_json()[name], form)


def _in_column(runs: dict[Mode, Measures], column: Mode, text: str) -> list[str]:
    return [text if mode is column else "" for mode in runs]


def _median(spread: Spread | None, form: Format) -> str:
    return shown(None if spread is None else spread.median, form)


def _saved(ratio: Spread | None) -> str:
    return shown(None if ratio is None else 1 - ratio.median, percent)
