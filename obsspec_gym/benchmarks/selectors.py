"""The adaptive selector against fixed depths and breadths, over a grid of simulated workloads.

Each cell is a workload: so many rollouts on one engine, world models that are right so often and answer so late, tools
that take so long, generations that take so much longer than tools. A cell is run without speculation, with each of
some fixed settings, and with the adaptive selector, which knows nothing of the cell; all on the virtual clock, with
the same episodes. The best fixed setting is chosen in hindsight, cell by cell.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from random import Random
from typing import Any

from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.speculation.profiles import Lognormal, Mixture, Profile, get_profile
from obsspec_gym.speculation.simulate import Setting, simulate

DEFAULTS: dict[str, Any] = {"cells": 60, "turns": 6, "seed": 0}
FULL: dict[str, Any] = {"cells": 256}

ROLLOUTS = (1, 4, 16, 64, 256)
MATCH = (0.0, 0.2, 0.4, 0.664, 0.9, 1.0)
TOOL = (0.001, 0.03, 0.3, 3.0, 30.0)
PREDICTION = (0.005, 0.05, 0.5, 2.0)
RATIO = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Of a lone generation's seconds to a tool's median seconds."""

FIXED = ((1, 1), (1, 4), (2, 1), (2, 2), (4, 1), (8, 1))
GREEDY = (8, 8)
GREEDY_ROLLOUTS = 16
"""The greediest setting grows trees of hundreds of futures: it is shown in cells of up to so many rollouts."""

_TOKENS = 100


@dataclass(frozen=True, slots=True)
class Cell:
    """One workload.

    Attributes:
        rollouts: Episodes at a time on one engine.
        match_rate: How often the first prediction is right.
        tool: Median seconds of a tool.
        prediction: Seconds of a prediction.
        ratio: A lone generation's median seconds / the tool's.
    """

    rollouts: int
    match_rate: float
    tool: float
    prediction: float
    ratio: float

    def profile(self, turns: int) -> Profile:
        """A server that slows with its batch as that of ``paper-8b`` does, at the cell's pace."""
        like = get_profile("paper-8b").speed
        return Profile(
            name="cell",
            speed=like.slower(self.ratio * self.tool / (like.read(_TOKENS) + _TOKENS * like.step)),
            output=Lognormal(_TOKENS, 0.6, 2048),
            observation=Lognormal(_TOKENS, 0.8, 1500),
            first_prompt=1000,
            turns=Lognormal(turns, 0.3, 3 * turns),
            tool=Mixture(((1.0, Lognormal(self.tool, 0.8)),)),
            round_trip=Lognormal(0.0),
            rollouts=self.rollouts,
            group=1,
            world_model_step=0.0,
        )


def grid(count: int, seed: int) -> list[Cell]:
    """Cells that cover every value of every axis equally often, and otherwise at random."""
    random = Random(seed)

    def column(values: Sequence[Any]) -> list[Any]:
        drawn = [values[index % len(values)] for index in range(count)]
        random.shuffle(drawn)
        return drawn

    columns = [column(values) for values in (ROLLOUTS, MATCH, TOOL, PREDICTION, RATIO)]
    return [Cell(*values) for values in zip(*columns, strict=True)]


def run(*, cells: int, turns: int, seed: int, report: Any) -> dict[str, Any]:
    """Runs the grid on all cores.

    Returns:
        ``cells`` (each with its ``ratios`` of agent latency to sequential by setting, the best fixed one, the
        adaptive one), ``worst_ratio`` (of the adaptive selector to sequential), ``share_of_best_fixed`` (the adaptive
        saving / that of the best fixed setting in hindsight, mean over cells where that saves at least 1 %), and
        ``greedy_loses`` (cells in which depth 8 and breadth 8 is slower than sequential).
    """
    if cells < 1 or turns < 1:
        raise InvalidArgumentError(f"cells and turns must be >= 1, got {cells} and {turns}")
    todo = grid(cells, seed)
    todo.sort(key=lambda cell: -cell.rollouts)  # the slowest first: the cores end together
    done: list[dict[str, Any]] = []
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:  # ends its processes when it is left
        for result in pool.imap_unordered(partial(run_cell, turns=turns, seed=seed), todo):
            done.append(result)
            report(f"cell {len(done)} of {cells}")
    done.sort(key=lambda cell: tuple(cell["cell"].values()))
    shares = [cell["share"] for cell in done if cell["share"] is not None]
    greedy = [cell["ratios"][_name(*GREEDY)] for cell in done if _name(*GREEDY) in cell["ratios"]]
    return {
        "cells": done,
        "count": len(done),
        "worst_ratio": max(cell["adaptive_ratio"] for cell in done),
        "share_of_best_fixed": sum(shares) / len(shares) if shares else None,
        "compared": len(shares),
        "mean_ratio": sum(cell["adaptive_ratio"] for cell in done) / len(done),
        "mean_ratio_of_depth_1": sum(cell["ratios"][_name(1, 1)] for cell in done) / len(done),
        "greedy_loses": sum(ratio > 1 for ratio in greedy),
        "greedy_worst_ratio": max(greedy, default=None),
        "greedy_cells": len(greedy),
    }


def run_cell(cell: Cell, turns: int, seed: int) -> dict[str, Any]:
    """One cell: sequential, every fixed setting, adaptive."""
    profile = cell.profile(turns)
    rollouts = max(cell.rollouts, min(4 * cell.rollouts, 64), 24)

    def latency(**setting: Any) -> float:
        chosen = Setting(match_rate=cell.match_rate, prediction_seconds=cell.prediction, **setting)
        measured = simulate(profile, chosen, rollouts=rollouts, seed=seed).measures.agent_latency
        assert measured is not None
        return measured

    sequential = latency(depth=0)
    settings = [*FIXED, *([GREEDY] if cell.rollouts <= GREEDY_ROLLOUTS else [])]
    ratios = {_name(*setting): latency(depth=setting[0], breadth=setting[1]) / sequential for setting in settings}
    adaptive = latency(depth=8, breadth=8, adaptive=True) / sequential
    best = min(ratios, key=lambda name: ratios[name])
    saving = 1 - ratios[best]
    return {
        "cell": asdict(cell),
        "adaptive_ratio": adaptive,
        "best_fixed": best,
        "best_ratio": ratios[best],
        "share": (1 - adaptive) / saving if saving >= 0.01 else None,
        "ratios": ratios,
    }


def _name(depth: int, breadth: int) -> str:
    return f"D{depth}K{breadth}"
