"""The same episodes in every mode, on the virtual clock."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import Any

import pytest

from obsspec_gym.agents.engine.simulated import SimulatedEngine
from obsspec_gym.agents.fakes import ScriptedWorldModel
from obsspec_gym.agents.history import History
from obsspec_gym.agents.token_policy import TokenPolicy
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.speculation.clock import run_virtual
from obsspec_gym.speculation.experiment import Experiment, run_modes, warm_up
from obsspec_gym.speculation.oracle import RecordedOracle
from obsspec_gym.speculation.results import ExperimentResult, Mode
from obsspec_gym.speculation.simulation import SimulatedSlot
from obsspec_gym.speculation.slot import Episode
from obsspec_gym.types import EpisodeId, Outcome, Sampling
from tests.speculation.scenario import World

EPISODES = [Episode(EpisodeId(f"task{i // 2}", i % 2)) for i in range(6)]
ALL = (Mode.SEQUENTIAL, Mode.SPECULATIVE, Mode.ORACLE, Mode.LIMIT)


def experiment(world: World, **options: Any) -> Experiment:
    return Experiment(
        make_envs=lambda: [SimulatedSlot(world.outcome, world.tool_seconds) for _ in range(2)],
        episodes=EPISODES,
        make_policy=lambda: TokenPolicy(SimulatedEngine(lambda batch: 0.01), Sampling(max_tokens=12)),
        make_world_model=options.pop("make_world_model", lambda: ScriptedWorldModel.right(world.oracle, seconds=0.01)),
        **options,
    )


def run(world: World, **options: Any) -> ExperimentResult:
    return run_virtual(experiment(world, **options).run())


def test_every_mode_gives_the_same_trajectories_and_the_oracle_is_the_limit():
    result = run(World(seed=5), modes=ALL)
    latency = {run.mode: run.measures.agent_latency for run in result.runs}
    assert list(latency) == list(ALL)
    assert latency[Mode.LIMIT] <= latency[Mode.ORACLE] < latency[Mode.SPECULATIVE] < latency[Mode.SEQUENTIAL]
    assert result.comparison.identical
    assert result.comparison.episodes == 3 * len(EPISODES)
    assert result.agent_latency_ratio.median == latency[Mode.SPECULATIVE] / latency[Mode.SEQUENTIAL]
    assert 0 < result.share_of_limit.median <= result.share_of_d_limit.median < 1
    oracle = result.of(Mode.ORACLE)[0].measures
    assert oracle.match_rate == oracle.hit_rate == 1.0


def test_a_world_model_that_is_always_wrong_saves_nothing():
    world = World(seed=5)
    result = run(world, make_world_model=lambda: ScriptedWorldModel.wrong(world.oracle))
    assert result.comparison.identical
    assert result.share_of_d_limit.median <= 0


def test_each_run_has_a_world_model_of_its_own_and_closes_it():
    world, made = World(seed=1), []

    def make() -> ScriptedWorldModel:
        made.append(ScriptedWorldModel.right(world.oracle))
        return made[-1]

    begun: list[tuple[Mode, int]] = []
    result = run(world, make_world_model=make, repeats=3, on_begin=lambda mode, repeat: begun.append((mode, repeat)))
    assert [len(model.observed) for model in made] == [run.measures.turns for run in result.of(Mode.SPECULATIVE)]
    assert len(made) == 3
    assert all(model.closed for model in made)
    assert [mode for mode, repeat in begun if repeat == 1] == [Mode.SPECULATIVE, Mode.ORACLE, Mode.SEQUENTIAL]
    assert sorted(mode.value for mode, _ in begun) == sorted(3 * ["sequential", "speculative", "oracle"])


def test_json_has_the_measures_the_ratios_and_their_spread():
    world = World(seed=2)
    single, repeated = run(world).to_json(), run(world, repeats=2).to_json()
    for name in ("agent_latency_ratio", "share_of_d_limit", "match_rate", "hidden_seconds", "pipeline_efficiency"):
        assert 0 < single[name] <= 1 or name == "hidden_seconds"
        assert repeated["spread"][name]["repeats"] == 2
    assert single["turns"] == single["modes"]["sequential"]["turns"] > 0
    assert single["mismatches"] == single["observation_differences"] == 0
    assert single["generation_tool_ratio"] == single["modes"]["sequential"]["generation_tool_ratio"]
    assert single["share_of_limit"] is None
    assert "spread" not in single
    json.dumps(repeated)


def test_differences_are_told_by_cause():
    result = run(World(seed=2), modes=(Mode.SEQUENTIAL, Mode.SPECULATIVE))
    speculative = result.of(Mode.SPECULATIVE)[0]
    first, second, *others = speculative.collection.trajectories
    steps = (dataclasses.replace(first.steps[0], action="something else"), *first.steps[1:])
    seen = (dataclasses.replace(second.steps[0], observation="something else"), *second.steps[1:])
    changed = (dataclasses.replace(first, steps=steps), dataclasses.replace(second, steps=seen), *others)
    collection = dataclasses.replace(speculative.collection, trajectories=changed)
    runs = (result.runs[0], dataclasses.replace(speculative, collection=collection))
    told = ExperimentResult(runs).to_json()
    assert (told["mismatches"], told["observation_differences"]) == (1, 1)
    assert told["differences"] == {"action": 1, "observation: other text": 1}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"repeats": 0}, "repeats must be >= 1, got 0"),
        ({"modes": ()}, "at least one episode and one mode"),
        ({"modes": (Mode.ORACLE, Mode.SEQUENTIAL)}, "an oracle answers from a sequential run"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        experiment(World(), **options)


def test_what_a_run_owns_is_closed_when_the_run_breaks():
    model = ScriptedWorldModel.silent()

    def broken_envs() -> Any:
        raise OSError("no environments today")

    with pytest.raises(OSError, match="no environments today"):
        run_modes(broken_envs, EPISODES, lambda: lambda history, seed: "a", lambda: model, modes=[Mode.SPECULATIVE])
    assert model.closed


def test_the_oracle_knows_what_was_recorded_and_nothing_else():
    world = World(seed=4)
    trajectories = world.run().trajectories
    oracle = RecordedOracle(trajectories)
    assert len(oracle) == sum(len(trajectory.steps) for trajectory in trajectories)
    last = trajectories[0].history
    step = trajectories[0].steps[-1]

    def predict(history: History, action: Any, n: int = 1) -> list[Any]:
        return asyncio.run(oracle.predict(history, action, n))

    [prediction] = predict(last.parent, last.value)
    assert Outcome(prediction.observation, prediction.ends) == Outcome(step.observation, True)
    assert predict(last.parent, "something else") == []
    assert predict(last.parent, last.value, n=0) == []
    elsewhere = History.start(EpisodeId("task9"), last.first_observation)
    assert predict(elsewhere, trajectories[0].steps[0].action) == []


def test_engines_are_warmed_up_before_a_run_is_timed():
    world, asked = World(seed=2), []

    async def warm(policy: Any, world_model: Any) -> None:
        asked.append(world_model)
        await warm_up(policy, world_model)
        await asyncio.sleep(100)

    model = ScriptedWorldModel.silent()
    result = run(world, make_world_model=lambda: model, before_run=warm)
    assert asked[:2] == [None, model]
    assert [call[1] for call in model.calls[:1]] == ["true"]
    assert all(each.measures.agent_latency < 100 for each in result.runs)
