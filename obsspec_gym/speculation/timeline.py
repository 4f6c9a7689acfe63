"""The picture of a run: which generation ran under which tool, mode by mode on one time axis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from obsspec_gym.errors import InvalidArgumentError, MissingExtraError
from obsspec_gym.speculation.record import Span, TurnRecord
from obsspec_gym.types import EpisodeId

_INK = "#1A1A1A"
_MUTED = "#6B6B6B"


@dataclass(frozen=True, slots=True)
class BarKind:
    """One kind of bar. The colours are told apart with any colour vision, and in grey.

    Attributes:
        label: What the legend calls it.
        color: Its fill.
        lane: Its bottom within an episode's row, 0 at the bottom and 1 at the top.
        height: Its height within the row.
        hatch: Its pattern; empty for none.
    """

    label: str
    color: str
    lane: float
    height: float
    hatch: str = ""


TOOL = BarKind("tool runs", "#C9CED6", 0.54, 0.34)
CRITICAL = BarKind("generation the episode waits for", "#E69F00", 0.08, 0.34)
HIDDEN = BarKind("generation under the tool, kept", "#0072B2", 0.08, 0.34)
DISCARDED = BarKind("generation under the tool, discarded", "#FFFFFF", 0.08, 0.34, "//////")
PREDICTION = BarKind("world model predicts", "#CC79A7", 0.435, 0.09)
KINDS = (TOOL, CRITICAL, HIDDEN, DISCARDED, PREDICTION)
_GENERATIONS = (CRITICAL, HIDDEN, DISCARDED)
_MOST_LANES = 5


def bars_of(turns: Iterable[TurnRecord]) -> list[tuple[BarKind, Span]]:
    """The bars of one episode. A kept generation is hidden until its history became real, critical from then on."""
    bars: list[tuple[BarKind, Span]] = []
    for turn in turns:
        bars.append((TOOL, turn.tool))
        bars += [(PREDICTION, prediction.span) for prediction in turn.predictions]
        bars += [(DISCARDED, future.span) for future in turn.futures]
        if turn.generation is None:
            continue
        real = turn.became_real(turn.generation)
        bars += [(HIDDEN, Span(turn.generation.start, real)), (CRITICAL, Span(real, turn.generation.end))]
    return [(kind, span) for kind, span in bars if span.seconds > 0]


def draw_timeline(
    turns_by_mode: Mapping[str, Sequence[TurnRecord]],
    path: str | Path,
    *,
    title: str = "The policy thinks while the tool runs",
    subtitle: str = "",
    agent_latency: Mapping[str, float] | None = None,
    episodes: int = 4,
) -> Path:
    """Draws a few episodes of every mode, each from its first generation on, as a PNG.

    Args:
        turns_by_mode: The records of each mode; the same episodes in each.
        path: Where to.
        title: The headline.
        subtitle: Below it, smaller: the latencies, say.
        agent_latency: Seconds a mode's rollouts took on average, for its panel's heading; by default those of the
            drawn records, from the first generation to the last tool's end.
        episodes: How many to draw at most; they are spread evenly over the order of the first mode.

    Returns:
        The path.

    Raises:
        InvalidArgumentError: If there is nothing to draw.
        MissingExtraError: If matplotlib is not installed.
    """
    chosen = _choose(turns_by_mode, episodes)
    if not chosen:
        raise InvalidArgumentError("a timeline needs at least one episode that every mode has records of")
    figure_class, patch = _matplotlib()
    rows = {mode: [_Row(episode, turns) for episode in chosen] for mode, turns in turns_by_mode.items()}
    means = dict(agent_latency or {}) or {mode: _mean_seconds(turns) for mode, turns in turns_by_mode.items()}
    height = 1.7 + len(rows) * (0.62 + 0.52 * len(chosen))
    figure = figure_class(figsize=(13, height), dpi=150, layout="constrained", facecolor="white")
    panels = figure.subplots(len(rows), 1, sharex=True, squeeze=False)[:, 0]
    longest = max(row.seconds for drawn in rows.values() for row in drawn)
    reference = next(iter(means.values()), 0.0)
    for axes, (mode, drawn) in zip(panels, rows.items(), strict=True):
        _draw_panel(axes, drawn, longest)
        _title_panel(axes, mode, means.get(mode), reference)
    panels[-1].set_xlabel("seconds since the episode's first generation began", color=_MUTED)
    # The second line of the headline is empty: it makes room for the subtitle, which is smaller.
    figure.suptitle(f"{title}\n", x=0.008, ha="left", fontsize=15, fontweight="bold", color=_INK)
    figure.text(0.008, 1 - 0.34 / height, subtitle, ha="left", va="top", fontsize=11, color=_MUTED)
    present = {kind for drawn in rows.values() for row in drawn for kind, _ in row.bars}
    handles = [patch(label=kind.label, **_style(kind)) for kind in KINDS if kind in present]
    figure.legend(handles=handles, loc="outside lower left", ncols=len(handles), frameon=False, fontsize=10)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, format="png")
    return target


class _Row:
    """One episode of one mode, its times counted from its first bar."""

    def __init__(self, episode: EpisodeId, turns: Sequence[TurnRecord]) -> None:
        self.label = f"{episode.task_id}  #{episode.sample}"
        bars = bars_of(turn for turn in turns if turn.episode == episode)
        origin = min(span.start for _, span in bars)
        self.bars = [(kind, Span(span.start - origin, span.end - origin)) for kind, span in bars]
        self.seconds = max(span.end for kind, span in self.bars if kind is TOOL)
        self._lanes = _lanes_of(self.bars)

    def drawn(self, kind: BarKind, thinnest: float) -> Iterable[tuple[tuple[float, float], list[tuple[float, float]]]]:
        """The bars of one kind: (bottom, height) within the row, and (start, width) of each there."""
        count = 1 + max(self._lanes, default=0) if kind in _GENERATIONS else 1
        height = kind.height / count
        for lane in range(count):
            spans = [
                (span.start, max(span.seconds, thinnest))
                for (of, span), at in zip(self.bars, self._lanes, strict=True)
                if of is kind and (at == lane or kind not in _GENERATIONS)
            ]
            if spans:
                yield (kind.lane + kind.height - (lane + 1) * height, height), spans


def _lanes_of(bars: Sequence[tuple[BarKind, Span]]) -> list[int]:
    """The lane of each bar: what was generated side by side is drawn one below the other, the kept ones on top."""
    lanes = [0] * len(bars)
    taken: list[list[Span]] = [[span for kind, span in bars if kind in (CRITICAL, HIDDEN)]]
    discarded = [index for index, (kind, _) in enumerate(bars) if kind is DISCARDED]
    for index in sorted(discarded, key=lambda index: bars[index][1].start):
        span = bars[index][1]
        free = (lane for lane, spans in enumerate(taken) if not any(_overlap(span, other) for other in spans))
        lane = min(next(free, len(taken)), _MOST_LANES - 1)
        if lane == len(taken):
            taken.append([])
        taken[lane].append(span)
        lanes[index] = lane
    return lanes


def _overlap(left: Span, right: Span) -> bool:
    return left.start < right.end and right.start < left.end


def _draw_panel(axes: Any, rows: Sequence[_Row], longest: float) -> None:
    for y, row in enumerate(reversed(rows)):
        for kind in KINDS:
            thinnest = 0.003 * longest if kind is PREDICTION else 0.0  # a memory's would not be seen
            for (bottom, height), spans in row.drawn(kind, thinnest):
                axes.broken_barh(spans, (y + bottom, height), **_style(kind))
        axes.plot([row.seconds] * 2, [y + 0.02, y + 0.94], color=_INK, linewidth=1.4, solid_capstyle="butt")
        axes.text(
            row.seconds + 0.006 * longest, y + 0.48, f"{row.seconds:.1f} s", va="center", fontsize=9.5, color=_INK
        )
    axes.set_ylim(-0.02, len(rows))
    axes.set_xlim(0, longest * 1.06)
    axes.set_yticks([y + 0.48 for y in range(len(rows))], [row.label for row in reversed(rows)], fontsize=9)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", colors=_MUTED)
    axes.grid(axis="x", color="#E8E8E8", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color("#BBBBBB")


def _title_panel(axes: Any, mode: str, seconds: float | None, reference: float) -> None:
    text = ""
    if seconds is not None:
        text = f"{seconds:.2f} s a rollout on average"
        if reference and seconds != reference:
            text += f", {(seconds - reference) / reference:+.0%}".replace("-", "−")
    axes.set_title(mode, loc="left", fontsize=12, fontweight="bold", color=_INK, pad=4)
    axes.set_title(text, loc="right", fontsize=11, color=_INK, pad=4)


def _style(kind: BarKind) -> dict[str, Any]:
    edge = "#7A7A7A" if kind.hatch else "white"
    return {"facecolor": kind.color, "hatch": kind.hatch, "edgecolor": edge, "linewidth": 0.5}


def _choose(turns_by_mode: Mapping[str, Sequence[TurnRecord]], count: int) -> list[EpisodeId]:
    """Episodes that every mode has, spread evenly over the order in which the first one decided them."""
    known = [dict.fromkeys(turn.episode for turn in turns) for turns in turns_by_mode.values()]
    common = [episode for episode in (known[0] if known else ()) if all(episode in each for each in known)]
    if count < 1 or not common:
        return []
    if len(common) > count:
        step = (len(common) - 1) / max(1, count - 1)
        common = [common[round(index * step)] for index in range(count)]
    return sorted(common, key=lambda episode: (episode.task_id, episode.sample))


def _mean_seconds(turns: Sequence[TurnRecord]) -> float:
    rows = [_Row(episode, turns) for episode in dict.fromkeys(turn.episode for turn in turns)]
    return sum(row.seconds for row in rows) / len(rows)


def _matplotlib() -> tuple[Any, Any]:
    """A figure that belongs to no window and no global state, and the legend's patch."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError as error:
        raise MissingExtraError("matplotlib", "lm") from error
    return Figure, Patch
