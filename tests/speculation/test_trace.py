"""The trace: valid, complete, and never two overlapping bars on one row."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from obsspec_gym.speculation.record import Fate
from obsspec_gym.speculation.selector import FixedSelector
from obsspec_gym.speculation.trace import slices_of, write_trace

from .scenario import World, moody_world_model


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), depth=st.integers(1, 3), breadth=st.integers(1, 3))
def test_bars_of_a_row_never_overlap_and_every_future_is_drawn(
    tmp_path_factory: object, seed: int, depth: int, breadth: int
) -> None:
    world = World(seed=seed, tool_scale=0.3)
    collection = world.run(moody_world_model(world, 0.01), FixedSelector(depth, breadth))
    path = tmp_path_factory.mktemp("trace") / "run.perfetto.json"  # type: ignore[attr-defined]
    events = json.loads(Path(write_trace(collection.turns, path)).read_text())["traceEvents"]
    rows = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert event["ts"] >= 0
            rows[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for bars in rows.values():
        bars.sort()
        assert all(first[1] <= second[0] + 1e-3 for first, second in itertools.pairwise(bars))
    decided = sum(len(turn.futures) for turn in collection.turns)
    kept = sum(turn.hit for turn in collection.turns)
    names = [bar.name for bar in slices_of(collection.turns) if bar.track == "future"]
    assert len(names) == decided + kept
    assert sum(name.startswith(Fate.KEPT.name) for name in names) == kept
    labels = {event["args"]["name"] for event in events if event["ph"] == "M" and event["name"] == "process_name"}
    assert len(labels) == len(collection.trajectories)


def test_an_empty_run_is_an_empty_trace(tmp_path: Path) -> None:
    assert json.loads(write_trace([], tmp_path / "deep" / "t.json").read_text())["traceEvents"] == []
