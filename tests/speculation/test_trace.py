"""The trace: valid, complete, never two overlapping bars on a track, and the measures of the run come out of it."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from obsspec_gym.agents.engine.simulated import SimulatedEngine, constant_step
from obsspec_gym.agents.fakes import ScriptedWorldModel
from obsspec_gym.agents.token_policy import TokenPolicy
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.speculation.clock import run_virtual
from obsspec_gym.speculation.collector import Collection
from obsspec_gym.speculation.metrics import measure
from obsspec_gym.speculation.record import Fate, TurnRecord
from obsspec_gym.speculation.selector import FixedSelector, Off
from obsspec_gym.speculation.speculator import Speculator
from obsspec_gym.speculation.trace import Trace, read_trace, write_trace
from obsspec_gym.speculation.trace_slices import ENGINE, WORLD_MODEL, slices_of
from obsspec_gym.speculation.trace_summary import summarise
from obsspec_gym.types import EpisodeId, Outcome, Sampling

from .scenario import World, moody_world_model


def collected(seed: int = 3, depth: int = 2, breadth: int = 2) -> Collection:
    world = World(seed=seed, tool_scale=0.3)
    return world.run(moody_world_model(world, 0.01), FixedSelector(depth, breadth))


def events_of(path: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), depth=st.integers(1, 4), breadth=st.integers(1, 3))
def test_bars_of_a_track_nest_or_lie_apart_and_every_future_is_drawn(
    tmp_path_factory: pytest.TempPathFactory, seed: int, depth: int, breadth: int
) -> None:
    collection = collected(seed, depth, breadth)
    path = write_trace(collection, tmp_path_factory.mktemp("trace") / "run.perfetto.json")
    tracks = defaultdict(list)
    for event in events_of(path):
        assert event["ph"] in ("M", "X", "C")
        if event["ph"] == "X":
            assert type(event["ts"]) is type(event["dur"]) is int  # a reader's own rounding would let them overlap
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for bars in tracks.values():
        assert bars == sorted(bars, key=lambda bar: (bar[0], -bar[1]))  # as the reader needs them: the outer one first
        open_until: list[int] = []
        for start, end in bars:
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or end <= open_until[-1]
            open_until.append(end)
    drawn = [bar.details["outcome"] for bar in slices_of(collection.turns) if "tokens" in bar.details and
             bar.track == "futures"]  # fmt: skip
    assert drawn.count("KEPT") == sum(turn.hit for turn in collection.turns)
    for fate in (Fate.DISCARDED, Fate.CANCELLED):
        assert drawn.count(fate.name) == sum(f.fate is fate for turn in collection.turns for f in turn.futures)


def test_what_a_track_shows() -> None:
    """One oracle of depth 2 over equal times: everything is where it can be computed by hand."""
    world = World(seed=1, episodes=1, environments=1, turns=4, tool_scale=0.3)
    world.tool_seconds = lambda episode, turn: 1.0  # type: ignore[method-assign]
    model = ScriptedWorldModel.right(world.oracle, seconds=0.1, probability=0.7)
    collection = world.run(model, FixedSelector(2, 1))
    bars = slices_of(collection.turns)
    turns = [bar for bar in bars if bar.track == "turns" and bar.within is None]
    assert [bar.name for bar in turns] == [f"turn {i}" for i in range(len(collection.turns))]
    assert all(turn.details["selector"] == "fixed" for turn in turns)
    tools = [bar for bar in bars if bar.name.startswith("tool")]
    assert [tool.within for tool in tools] == turns
    assert all(tool.span.seconds == pytest.approx(1.0) for tool in tools)
    kept = [bar for bar in bars if bar.name.startswith("KEPT")]
    assert len(kept) == len(turns) - 1
    for bar in kept:
        assert (bar.details["source"], bar.details["probability"], bar.details["depth"]) == ("right", 0.7, 2)
        inside = {each.name: each.span for each in bars if each.within is bar}
        assert inside["predict"].seconds == pytest.approx(0.1)
        assert inside["generate"].start == pytest.approx(inside["predict"].end)
    requests = [bar for bar in bars if bar.group == ENGINE]
    assert {bar.track for bar in requests} == {"committed", "speculative"}
    generated = sum(turn.generation.seconds for turn in collection.turns if turn.generation)
    thrown_away = sum(future.span.seconds for turn in collection.turns for future in turn.futures)
    assert sum(bar.span.seconds for bar in requests) == pytest.approx(generated + thrown_away)
    assert any(bar.group == WORLD_MODEL for bar in bars)


def test_what_grew_on_a_discarded_future_is_drawn_inside_it() -> None:
    world = World(seed=2, episodes=1, environments=1, turns=4, tool_scale=5.0, step_seconds=0.001)
    collection = world.run(ScriptedWorldModel.wrong(world.oracle, seconds=0.01), FixedSelector(3, 1))
    bars = [bar for bar in slices_of(collection.turns) if bar.name.startswith(("DISCARDED", "CANCELLED"))]
    deep = [bar for bar in bars if bar.details.get("observations_ahead", 0) > 1]
    assert deep
    for bar in deep:
        assert bar.within is not None
        assert bar.within.details["observations_ahead"] == bar.details["observations_ahead"] - 1
        assert bar.within.span.start <= bar.span.start <= bar.span.end <= bar.within.span.end


def test_the_engine_counts_its_requests(tmp_path: Path) -> None:
    counts = [event["args"] for event in events_of(write_trace(collected(), tmp_path / "t.json")) if event["ph"] == "C"]
    assert counts
    assert counts[-1] == {"committed": 0, "speculative": 0}
    assert all(number >= 0 for count in counts for number in count.values())
    assert max(count["speculative"] for count in counts) > 0


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), depth=st.integers(0, 3))
def test_the_measures_of_a_run_come_out_of_its_trace(
    tmp_path_factory: pytest.TempPathFactory, seed: int, depth: int
) -> None:
    collection = collected(seed, depth)
    trace = read_trace(write_trace(collection, tmp_path_factory.mktemp("trace") / "run.json"))
    assert trace == Trace.of(collection)
    assert measure(trace) == measure(collection)
    summary = summarise(trace)
    measures = measure(collection)
    for parts in (summary.by_kind, summary.by_reason):
        assert sum(part.turns for part in parts.values()) == measures.turns
        assert sum(part.hidden_seconds for part in parts.values()) == pytest.approx(measures.hidden_seconds)
        discarded = sum(part.discarded_tokens for part in parts.values())
        assert discarded == (measures.discarded_tokens or 0) * measures.rollouts
        followed = sum(part.followed for part in parts.values())
        assert measures.hit_rate == (sum(part.hits for part in parts.values()) / followed if followed else None)
    assert sum(source["verified"] for source in summary.sources.values()) == measures.verified
    assert json.loads(json.dumps(summary.to_json()))["futures"].keys() == {"KEPT", "DISCARDED", "CANCELLED"}


def test_futures_that_an_update_drops_are_in_the_trace() -> None:
    async def main() -> TurnRecord:
        records: list[TurnRecord] = []
        model = ScriptedWorldModel.right(lambda history, action: Outcome("ok"), probability=0.8)
        engine = SimulatedEngine(constant_step(0.1), length=lambda prompt, seed: 5)
        speculator = Speculator(TokenPolicy(engine, Sampling()), model, on_turn=records.append)
        action = speculator.start(EpisodeId("t"), "go")
        chosen = await action
        asyncio.get_running_loop().call_later(0.35, speculator.update_weights, 1)
        await speculator.turn(action.history, chosen, execute=asyncio.sleep(1.0, Outcome("ok")))
        await speculator.close()
        return records[0]

    turn = run_virtual(main())
    [future] = turn.futures
    assert (future.fate, future.source, future.probability, future.depth) == (Fate.CANCELLED, "right", 0.8, 1)
    assert future.tokens == 3
    assert future.parent == turn.key != future.key


def test_an_empty_run_is_an_empty_trace(tmp_path: Path) -> None:
    path = write_trace([], tmp_path / "deep" / "t.json")
    assert events_of(path) == []
    assert read_trace(path) == Trace((), (), 0.0)
    assert summarise(read_trace(path)).measures.turns == 0
    assert list(path.parent.iterdir()) == [path]


def test_a_sequential_run_has_no_speculative_tracks(tmp_path: Path) -> None:
    turns = World(seed=4).run(None, Off()).turns
    assert {bar.track for bar in slices_of(turns)} == {"turns", "committed"}


def test_a_world_model_may_say_anything_about_its_probability(tmp_path: Path) -> None:
    turns = collected().turns
    odd = [
        dataclasses.replace(
            turn,
            predictions=tuple(dataclasses.replace(p, probability=float("nan")) for p in turn.predictions),
            futures=tuple(dataclasses.replace(f, probability=float("inf")) for f in turn.futures),
        )
        for turn in turns
    ]
    json.dumps(events_of(write_trace(odd, tmp_path / "t.json")), allow_nan=False)


def _records(path: Path, **changes: Any) -> str:
    content = json.loads(path.read_text())
    content["obsspec_gym"].update(changes)
    return json.dumps(content)


def test_what_is_no_trace_is_told_in_one_sentence(tmp_path: Path) -> None:
    good = write_trace(collected(), tmp_path / "good.json")
    text = good.read_text()
    damaged = json.loads(text)["obsspec_gym"]["turns"]
    damaged[0] = {**damaged[0], "unknown": 1}
    cases: dict[str, str | bytes] = {
        "is empty": "",
        "is cut off": text[: len(text) // 2],
        "is not JSON": "turns: 3\n",
        "no records of turns": json.dumps({"traceEvents": []}),
        "no records of turns ": "[1, 2]",
        "is not text": b"\x0a\xff\xfe\x00perfetto",
        "of version 99": _records(good, version=99),
        "is damaged": _records(good, turns=[{"episode": 3}]),
        "is damaged ": _records(good, turns=damaged),
        "is damaged  ": _records(good, turns=7),
    }
    for said, content in cases.items():
        path = tmp_path / "bad.json"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(InvalidArgumentError, match=said.strip()) as caught:
            read_trace(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(InvalidArgumentError, match="cannot be read"):
            read_trace(path)
