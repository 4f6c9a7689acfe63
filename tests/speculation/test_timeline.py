"""The picture, from records of the virtual clock."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from obsspec_gym.agents.fakes import ScriptedWorldModel
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.speculation.oracle import RecordedOracle
from obsspec_gym.speculation.timeline import CRITICAL, DISCARDED, HIDDEN, PREDICTION, TOOL, bars_of, draw_timeline
from tests.speculation.scenario import World

WORLD = World(seed=3, episodes=6, environments=3, turns=6, tool_scale=0.3)


def covered(kind, turns):
    return sum(span.seconds for of, span in bars_of(turns) if of is kind)


def test_bars_add_up_to_what_was_recorded():
    model = ScriptedWorldModel.mixed(
        [ScriptedWorldModel.right(WORLD.oracle, seconds=0.02), ScriptedWorldModel.wrong(WORLD.oracle)], seed=1
    )
    turns = WORLD.run(model).turns
    hidden = sum(turn.hidden_seconds for turn in turns)
    generated = sum(turn.generation.seconds for turn in turns)
    assert hidden > 0
    assert covered(HIDDEN, turns) == pytest.approx(hidden)
    assert covered(CRITICAL, turns) == pytest.approx(generated - hidden)
    assert covered(TOOL, turns) == pytest.approx(sum(turn.tool.seconds for turn in turns))
    kinds = Counter(kind for kind, _ in bars_of(turns))
    assert kinds[DISCARDED] == sum(len(turn.futures) for turn in turns) > 0
    assert kinds[PREDICTION] > 0


def test_without_speculation_nothing_is_hidden():
    assert {kind for kind, _ in bars_of(WORLD.run().turns)} == {TOOL, CRITICAL}


def share(picture, kind):
    return float((np.abs(picture[..., :3] - to_rgb(kind.color)).max(axis=-1) < 0.01).mean())


def test_the_picture_shows_generation_under_tools_only_where_there_was_some(tmp_path):
    sequential = WORLD.run()
    oracle = WORLD.run(RecordedOracle(sequential.trajectories))
    plain = imread(draw_timeline({"sequential": sequential.turns}, tmp_path / "a" / "plain.png", episodes=2))
    both = {"sequential": sequential.turns, "oracle": oracle.turns}
    full = imread(draw_timeline(both, tmp_path / "full.png", title="Two", agent_latency={"sequential": 2.0}))
    assert share(plain, HIDDEN) == 0 < share(full, HIDDEN)
    assert share(plain, CRITICAL) > 0.01
    assert share(full, TOOL) > 0.01
    assert full.shape[0] > plain.shape[0]


def test_nothing_to_draw(tmp_path):
    turns = WORLD.run().turns
    for modes in ({}, {"sequential": ()}, {"sequential": turns, "speculative": ()}):
        with pytest.raises(InvalidArgumentError, match="at least one episode that every mode has"):
            draw_timeline(modes, tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()
