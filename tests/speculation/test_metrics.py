"""Every measure against a run small enough to be worked out by hand."""

from __future__ import annotations

import pytest

from obsspec_gym.agents.history import History
from obsspec_gym.speculation.collector import Collection
from obsspec_gym.speculation.metrics import Spread, measure, share_of_limit
from obsspec_gym.speculation.record import Fate, FutureRecord, PredictionRecord, Span, TurnRecord, is_empty
from obsspec_gym.speculation.trajectory import Step, Trajectory
from obsspec_gym.types import Completion, EpisodeId

EPISODE = EpisodeId("t")


def turn(number: int, **changes: object) -> TurnRecord:
    values: dict[str, object] = {
        "episode": EPISODE,
        "turn": number,
        "generation": Span(0.0, 1.0),
        "tokens": 3,
        "hit": False,
        "committed": 0.0,
        "action_known": 0.0,
        "prediction": None,
        "tool": Span(1.0, 3.0),
        "ends": False,
    }
    return TurnRecord(**{**values, **changes})  # type: ignore[arg-type]


def prediction(matched: bool, source: str = "lm", empty: bool = False, seconds: float = 0.5) -> PredictionRecord:
    return PredictionRecord(source, 0.9, Span(1.0, 1.0 + seconds), matched, empty)


TURNS = (
    # Turn 0: tool of 2 s, right prediction after 0.5 s; the generation of turn 1 starts at 1.6 and ends at 3.4.
    turn(0, predictions=(prediction(True),)),
    # Turn 1 is a hit: 1.4 s of its 1.8 s generation ran under the tool; 1.5 s could have. Its tool takes 6 s.
    turn(
        1,
        generation=Span(1.6, 3.4),
        hit=True,
        committed=3.0,
        action_known=1.0,
        prediction=Span(1.0, 1.5),
        tool=Span(3.4, 9.4),
        predictions=(prediction(False, "memory", empty=True),),
        futures=(FutureRecord(Span(4.0, 9.4), Fate.CANCELLED, 7, 1),),
    ),
    # Turn 2 is a miss; the prediction came too late.
    turn(2, generation=Span(9.4, 10.4), tool=Span(10.4, 11.4), ends=True, late=1),
)


def collection() -> Collection:
    step = Step("a", Completion((1,), (-0.1,)), "o", 1.0, False, 2.0)
    history = History.start(EPISODE, "go")
    trajectory = Trajectory(EPISODE, history, (step,) * 3, True, False, "", started=0.0, finished=11.4)
    return Collection((trajectory,), TURNS, 12.0, {})


def test_measures_follow_their_definitions() -> None:
    measures = measure(collection())
    assert measures.rollouts == 1
    assert measures.turns == 3
    assert measures.solved == 1.0
    assert measures.agent_latency == pytest.approx(11.4)
    assert measures.throughput == pytest.approx(300.0)
    assert measures.generation_seconds == pytest.approx(1.0 + 1.8 + 1.0)
    assert measures.tool_seconds == pytest.approx(2.0 + 6.0 + 1.0)
    assert measures.generation_tool_ratio == pytest.approx(3.8 / 9.0)
    assert measures.verified == 2
    assert measures.match_rate == pytest.approx(0.5)
    assert measures.time_weighted_match_rate == pytest.approx(2.0 / 8.0)
    assert measures.nonempty_match_rate == 1.0
    assert measures.match_rate_by_source == {"lm": 1.0, "memory": 0.0}
    assert measures.late == 1
    assert measures.hit_rate == pytest.approx(1 / 2)
    assert measures.prediction_lead == pytest.approx(8.0 / 1.0)
    assert measures.hidden_seconds == pytest.approx(1.4)
    assert measures.pipeline_efficiency == pytest.approx(1.4 / 1.5)
    assert measures.discarded_tokens == 7
    assert set(measures.to_json()) >= {"hit_rate", "match_rate_by_source"}


def test_an_empty_collection_has_no_ratios() -> None:
    measures = measure(Collection((), (), 0.0, {}))
    assert measures.match_rate is None
    assert measures.hit_rate is None
    assert measures.agent_latency is None
    assert measures.pipeline_efficiency is None


def test_share_of_limit() -> None:
    assert share_of_limit(10.0, 8.0, 6.0) == pytest.approx(0.5)
    assert share_of_limit(10.0, 11.0, 6.0) == pytest.approx(-0.25)
    assert share_of_limit(10.0, 9.0, 10.0) is None


def test_spread_is_median_and_quartiles() -> None:
    assert Spread.of([3.0]) == Spread(3.0, 3.0, 3.0, 1)
    spread = Spread.of([5.0, 1.0, 3.0, 2.0, 4.0])
    assert (spread.low, spread.median, spread.high, spread.repeats) == (2.0, 3.0, 4.0, 5)


@pytest.mark.parametrize(
    ("observation", "empty"),
    [("[exit 0] ~", True), ("", True), ("a\n[exit 0] ~", False), ("hello", False), (3, False)],
)
def test_an_output_is_empty_when_only_the_status_line_is_there(observation: object, empty: bool) -> None:
    assert is_empty(observation) is empty
