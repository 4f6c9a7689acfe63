"""What a world model reads of an episode: every observation once, where the dialogue has it."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from obsspec_gym.agents.fakes import ScriptedPolicy
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.speculation.collector import collect
from obsspec_gym.speculation.slot import Episode
from obsspec_gym.training.passages import Passage, passages_of, transitions_of
from obsspec_gym.types import EpisodeId
from tests.training.foresight import reader, transitions
from tests.training.parts import DigitEnv, DigitSuite

pytest.importorskip("tokenizers")

TURNS = [("cat n", "3\n[exit 0] ~"), ("true", "[exit 0] ~"), ("submit 3", "[submitted]")]


def test_an_episode_is_one_passage_with_every_observation_and_its_closing_token(tokenizer: Any) -> None:
    [passage] = passages_of(reader(tokenizer), transitions("t", 0, TURNS))
    assert tokenizer.decode(passage.ids) == (
        "<|task|>Which digit?<|act|>cat n<|end|><|obs|>3\n[exit 0] ~<|act|>true<|end|><|obs|>[exit 0] ~"
        "<|act|>submit 3<|end|><|obs|>[submitted]<|end|>"
    )
    answers = [tokenizer.decode(passage.ids[answer.start : answer.stop]) for answer in passage.answers]
    assert answers == ["3\n[exit 0] ~<|act|>", "[exit 0] ~<|act|>", "[submitted]<|end|>"]
    assert [answer.turn for answer in passage.answers] == [0, 1, 2]
    assert [answer.empty for answer in passage.answers] == [False, True, True]
    assert [answer.tool_seconds for answer in passage.answers] == [1.0, 2.0, 3.0]


def test_a_right_prediction_hides_what_is_left_of_the_tool_and_no_more_than_the_next_generation(tokenizer: Any) -> None:
    model, episode = reader(tokenizer), transitions("t", 0, TURNS)

    def hidable(*generations: float, **options: float) -> list[float]:
        [passage] = passages_of(model, episode, generations or None, **options)
        return [answer.hidable_seconds for answer in passage.answers]

    assert hidable() == [1.0, 2.0, 0.0]  # nothing is generated after the end
    assert hidable(0.5, 5.0, 9.0) == [0.5, 2.0, 0.0]
    [passage] = passages_of(model, episode)
    lengths = [answer.stop - answer.start for answer in passage.answers]
    assert hidable(9.0, 9.0, 9.0, seconds_per_token=0.1) == pytest.approx(
        [1.0 - 0.1 * lengths[0], 2.0 - 0.1 * lengths[1], 0.0]
    )
    assert hidable(9.0, 9.0, 9.0, seconds_per_token=1.0) == [0.0, 0.0, 0.0]
    with pytest.raises(InvalidArgumentError, match="one number a transition, got 1 for 3"):
        hidable(1.0)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.permutations(range(9)))
def test_the_order_of_reports_does_not_matter(tokenizer: Any, order: list[int]) -> None:
    episodes = [each for task in ("a", "b") for sample in (0, 1) for each in transitions(task, sample, TURNS)][:9]
    shuffled = passages_of(reader(tokenizer), [episodes[index] for index in order])
    assert shuffled == passages_of(reader(tokenizer), episodes)
    assert shuffled == sorted(shuffled, key=lambda passage: passage.order)
    assert [(passage.task_id, passage.sample) for passage in shuffled] == [("a", 0), ("a", 1), ("b", 0)]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(context=st.integers(60, 200), seed=st.integers(0, 1000))
def test_a_model_is_taught_exactly_what_it_is_asked(tokenizer: Any, context: int, seed: int) -> None:
    """However much of an episode is dropped: before each answer stands the prompt of its prediction."""
    random = Random(seed)
    turns = [(random.choice(["cat n", "ls"]), "x" * random.randrange(12) + "[exit 0] ~") for _ in range(10)]
    model = reader(tokenizer, context_length=context, max_tokens=20)
    episode = transitions("t", 0, turns, ended=False)
    passages = passages_of(model, episode)
    places = {answer.turn: (passage, answer) for passage in passages for answer in passage.answers}
    assert sorted(places) == list(range(10))
    for turn, transition in enumerate(episode):
        passage, answer = places[turn]
        prompt = model.prompt(transition.history.parent, transition.action)  # type: ignore[arg-type]
        assert passage.ids[: answer.start] == (prompt or ())
        written = model.answer(transition.outcome) if prompt else None
        assert passage.ids[answer.start : answer.stop] == (written or ())


def test_what_cannot_be_predicted_counts_and_teaches_nothing(tokenizer: Any) -> None:
    long = "word " * 40 + "\n[exit 0] ~"
    model = reader(tokenizer, max_tokens=20)
    [passage] = passages_of(model, transitions("t", 0, [("cat n", long)]))
    assert [(answer.turn, answer.stop - answer.start) for answer in passage.answers] == [(0, 0)]
    assert not passage.teaches
    followed = passages_of(model, transitions("t", 0, [("cat n", long), ("true", "[exit 0] ~")]))
    assert [answer.turn for each in followed for answer in each.answers] == [0, 1]
    assert any(each.teaches for each in followed)
    [number] = passages_of(model, transitions("t", 0, [("cat n", 3)]))  # type: ignore[list-item]
    assert not number.teaches


def test_a_passage_survives_a_checkpoint(tokenizer: Any) -> None:
    [passage] = passages_of(reader(tokenizer), transitions("t", 7, TURNS))
    assert Passage.of_state(passage.to_state()) == passage


def test_what_happened_in_a_collection(tokenizer: Any) -> None:
    """The last turn of an episode that ran out of turns is no lesson; that of one that ended is."""
    suite = DigitSuite()
    commands = {0: ["cat n", "submit 1"], 1: ["ls", "ls", "ls"]}
    policy = ScriptedPolicy(lambda history, seed: commands[history.episode.sample][history.turn], seconds=0.01)
    episodes = [Episode(EpisodeId("digits/2", sample), options={"task": suite.task(2)}) for sample in (0, 1)]
    collection = collect([DigitEnv(), DigitEnv()], episodes, policy)
    found, generations = transitions_of(collection)
    seen = [(each.history.episode.sample, each.history.turn, each.action, each.outcome.ends) for each in found]
    assert seen == [(0, 1, "cat n", False), (0, 2, "submit 1", True), (1, 1, "ls", False), (1, 2, "ls", False)]
    assert [each.outcome.observation for each in found][1:] == ["[submitted]", *["no such command\n[exit 0] ~"] * 2]
    assert all(math.isfinite(each.tool_seconds) and each.tool_seconds >= 0 for each in found)
    assert generations[1] == 0.0
    assert min(generations[0], *generations[2:]) >= 0.005
    [first, second] = passages_of(reader(tokenizer), found, generations)
    assert (len(first.answers), len(second.answers)) == (2, 2)
