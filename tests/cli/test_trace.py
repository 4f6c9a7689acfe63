"""`obsspec trace`: tables, JSON and a picture from a file, and one sentence for what is no trace."""

from __future__ import annotations

import json

import pytest

from obsspec_gym.cli import main
from obsspec_gym.speculation.metrics import measure
from obsspec_gym.speculation.selector import FixedSelector
from obsspec_gym.speculation.trace import write_trace
from tests.speculation.scenario import World, moody_world_model


@pytest.fixture
def run(tmp_path):
    world = World(seed=3, tool_scale=0.3)
    collection = world.run(moody_world_model(world, 0.01), FixedSelector(2, 2))
    return collection, write_trace(collection, tmp_path / "run.perfetto.json")


def test_the_summary_is_that_of_the_run(run, capsys):
    collection, path = run
    assert main(["trace", str(path), "--json"]) == 0
    out = capsys.readouterr().out
    result = json.loads(out.splitlines()[-1])
    assert result | measure(collection).to_json() == result
    assert result["futures"]["KEPT"] == sum(turn.hit for turn in collection.turns) > 0
    assert set(result["by_reason"]) == {"fixed"}
    assert set(result["by_kind"]) == {"tuple"}
    assert "By command" in out
    assert "DISCARDED" in out


def test_the_picture(run, tmp_path, capsys):
    _, path = run
    picture = tmp_path / "new" / "picture.png"
    assert main(["trace", str(path), "--out", str(picture), "--episodes", "2"]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert str(picture) in capsys.readouterr().out.replace("\n", "")


@pytest.mark.parametrize("content", ["", '{"displayTimeUnit":"ms","traceEvents":[{"ph"', "{}", "hello"])
def test_what_is_no_trace(tmp_path, capsys, content):
    path = tmp_path / "bad.json"
    path.write_text(content)
    picture = tmp_path / "picture.png"
    assert main(["trace", str(path), "--out", str(picture)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not picture.exists()


def test_nothing_to_draw(tmp_path, capsys):
    path = write_trace([], tmp_path / "none.json")
    assert main(["trace", str(path)]) == 0
    assert "no turns" in capsys.readouterr().out
    assert main(["trace", str(path), "--out", str(tmp_path / "picture.png")]) == 2
