"""MemoryWorldModel: what it remembers, from which context, and what it forgets."""

from __future__ import annotations

import asyncio
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from obsspec_gym.agents.history import History
from obsspec_gym.agents.world_model.effects import may_change_state
from obsspec_gym.agents.world_model.memory import LEVELS, MemoryWorldModel
from obsspec_gym.agents.world_model.partial import may_continue
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.types import EpisodeId, MalformedCall, Outcome, Prediction, Transition

DONE = "[exit 0] ~"


def start(task: str = "count", sample: int = 0) -> History:
    return History.start(EpisodeId(task, sample), f"the instruction of {task}")


def happen(memory: MemoryWorldModel, history: History, action: str, observation: str, ends: bool = False) -> History:
    """One real turn, told to the memory."""
    acted = history.act(action)
    memory.observe(Transition(acted, Outcome(observation, ends), 0.1))
    return acted.observe(observation)


def ask(memory: MemoryWorldModel, history: History, action: str, n: int = 1, partial: str = "") -> list[Prediction]:
    return asyncio.run(memory.predict(history, action, n, partial))


def test_another_member_of_the_group_is_predicted_from_the_same_prefix() -> None:
    memory = MemoryWorldModel()
    first = happen(memory, start(sample=0), "ls", "a\n" + DONE)
    happen(memory, first, "cat a", "text\n" + DONE)
    second = start(sample=1).act("ls").observe("a\n" + DONE)
    [prediction] = ask(memory, second, "cat a")
    assert (prediction.observation, prediction.ends, prediction.source) == ("text\n" + DONE, False, "memory:prefix")
    assert 0 < prediction.probability < 1


def test_an_action_never_seen_is_not_predicted() -> None:
    memory = MemoryWorldModel()
    happen(memory, start(), "ls", DONE)
    assert ask(memory, start(), "ls -a") == []
    assert ask(memory, start(), MalformedCall("ls")) == [], "a malformed call is not the command of the same text"


@pytest.mark.parametrize(
    ("level", "seen", "asked"),
    [
        ("commands", ["t|date|monday", "ls|a"], ["t|date|tuesday"]),
        ("state", ["t|date|monday", "touch b|", "ls|a"], ["t|touch b|", "cat z|zzz"]),
        ("observation", ["t|make|done", "ls|a"], ["t|touch z|done"]),
        ("elsewhere", ["t|make|done", "ls|a"], ["u|make|done"]),
        ("action", ["t|make|done", "ls|a"], ["u|make|other"]),
    ],
)
def test_backs_off_to_the_most_specific_context_that_is_known(level: str, seen: list[str], asked: list[str]) -> None:
    def play(memory: MemoryWorldModel, turns: list[str]) -> History:
        task, *_ = turns[0].split("|")
        history = start(task)
        for turn in turns:
            *_, command, output = turn.split("|")
            history = happen(memory, history, command, output)
        return history

    memory = MemoryWorldModel()
    play(memory, seen)
    now = play(MemoryWorldModel(), asked)
    [prediction] = ask(memory, now, "ls")
    assert (prediction.observation, prediction.source) == ("a", f"memory:{level}")
    assert level in LEVELS


def test_the_end_of_an_episode_is_remembered_too() -> None:
    memory = MemoryWorldModel()
    happen(memory, start("a"), "submit", "[submitted]", ends=True)
    [prediction] = ask(memory, start("b"), "submit")
    assert prediction.ends


def test_several_outcomes_come_ordered_by_probability_and_sum_to_at_most_one() -> None:
    memory = MemoryWorldModel()
    for observation in ["x", "y", "y", "y", "x", "z"]:
        happen(memory, start(), "flip", observation)
    predictions = ask(memory, start(), "flip", n=8)
    assert [p.observation for p in predictions] == ["y", "x", "z"]
    probabilities = [p.probability for p in predictions]
    assert probabilities == sorted(probabilities, reverse=True)
    assert sum(probabilities) <= 1 + 1e-9
    assert [p.observation for p in ask(memory, start(), "flip", n=2)] == ["y", "x"]


def test_weaker_contexts_fill_up_to_n() -> None:
    memory = MemoryWorldModel()
    happen(memory, start("a"), "ls", "from a")
    happen(memory, start("b"), "ls", "from b")
    predictions = ask(memory, start("b"), "ls", n=2)
    assert [(p.observation, p.source) for p in predictions] == [
        ("from b", "memory:prefix"),
        ("from a", "memory:action"),
    ]


def test_what_fills_up_gets_only_the_probability_that_is_left() -> None:
    memory = MemoryWorldModel()
    happen(memory, start("a"), "ls", "from a")
    happen(memory, start("b"), "ls", "from b")
    first, second = ask(memory, start("b"), "ls", n=2)
    unlimited = memory._calibration["memory:action"](1 / 3)  # once in two, and there may be others
    assert second.observation == "from a"
    assert second.probability == pytest.approx((1 - first.probability) * unlimited)


def test_output_that_is_already_there_drops_what_contradicts_it() -> None:
    memory = MemoryWorldModel()
    for observation in ["ok 1\nok 2\n" + DONE, "ok 1\nfailed 2\n[exit 1] ~"]:
        happen(memory, start(), "make test", observation)
    assert len(ask(memory, start(), "make test", n=4, partial="ok 1\n")) == 2
    [left] = ask(memory, start(), "make test", n=4, partial="ok 1\nfail")
    assert left.observation.endswith("[exit 1] ~")
    assert ask(memory, start(), "make test", n=4, partial="error") == []


def test_a_command_that_never_repeats_is_not_predicted_until_it_does() -> None:
    memory = MemoryWorldModel()
    for second in range(4):
        happen(memory, start(), "date", f"12:00:0{second}")
    assert memory.never_repeats("date")
    assert ask(memory, start(), "date") == []
    happen(memory, start(), "date", "12:00:01")
    assert not memory.never_repeats("date")
    assert ask(memory, start(), "date") != []


def test_probabilities_follow_what_comes_true() -> None:
    reliable, unreliable = MemoryWorldModel(), MemoryWorldModel()
    for i in range(40):
        happen(reliable, start(f"t{i // 2}"), "ls", f"files of {i // 2}")
        happen(unreliable, start(f"t{i // 2}"), "ls", f"files at {i}")
    happen(reliable, start("new"), "ls", "x")
    happen(unreliable, start("new"), "ls", "x")
    [right] = ask(reliable, start("new"), "ls")
    assert right.probability > 0.8
    unreliable._repeats.clear()  # or it would say nothing at all
    [wrong] = ask(unreliable, start("new"), "ls")
    assert wrong.probability < 0.2


def test_stays_within_its_bounds_and_forgets_the_least_recent_first() -> None:
    memory = MemoryWorldModel(capacity=3, outcomes=2)
    for i in range(10):
        happen(memory, start(f"task {i}"), "ls", f"files {i}")
    assert len(memory) <= 3 * len(LEVELS)
    assert ask(memory, start("task 9"), "ls")[0].source == "memory:prefix"
    assert ask(memory, start("task 0"), "ls")[0].source == "memory:action"
    assert len(ask(memory, start("task 0"), "ls", n=9)) == 2


def test_what_happens_again_is_not_forgotten() -> None:
    memory = MemoryWorldModel(capacity=2)
    for task in ["often", "b", "often", "c"]:
        happen(memory, start(task), "ls", f"files of {task}")
    assert ask(memory, start("often"), "ls")[0].source == "memory:prefix"


def test_a_checkpoint_brings_back_the_same_predictions() -> None:
    memory = MemoryWorldModel()
    for i in range(12):
        happen(memory, start(f"t{i % 3}"), "ls", f"{i // 6}")
    restored = MemoryWorldModel()
    restored.load_state_dict(pickle.loads(pickle.dumps(memory.state_dict())))
    pickled = pickle.loads(pickle.dumps(memory))
    for task in ["t0", "t1", "t2", "t3"]:
        expected = ask(memory, start(task), "ls", n=4)
        assert expected
        assert ask(restored, start(task), "ls", n=4) == expected
        assert ask(pickled, start(task), "ls", n=4) == expected


def test_bad_bounds_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="capacity"):
        MemoryWorldModel(capacity=0)


commands = st.sampled_from(["ls", "cat a", "touch b", "make", "submit"])
outputs = st.sampled_from(["", "a", "a\nb", "a\nc", "b"])


@settings(max_examples=40, deadline=None)
@given(
    episodes=st.lists(st.lists(st.tuples(commands, outputs), max_size=5), max_size=6),
    n=st.integers(1, 4),
    partial=st.sampled_from(["", "a", "a\n", "z"]),
)
def test_whatever_was_seen(episodes: list[list[tuple[str, str]]], n: int, partial: str) -> None:
    """Predictions are distinct, at most n, ordered, within [0, 1] in sum, able to continue, and deterministic."""
    first, second = MemoryWorldModel(), MemoryWorldModel()
    for memory in (first, second):
        for episode in episodes:
            history = start()
            for command, output in episode:
                history = happen(memory, history, command, output)
    for command in ["ls", "make"]:
        predictions = ask(first, start(), command, n, partial)
        assert predictions == ask(second, start(), command, n, partial)
        assert len(predictions) <= n
        assert len({(p.observation, p.ends) for p in predictions}) == len(predictions)
        probabilities = [p.probability for p in predictions]
        assert probabilities == sorted(probabilities, reverse=True)
        assert all(p >= 0 for p in probabilities)
        assert sum(probabilities) <= 1 + 1e-9
        assert all(p.observation.startswith(partial) for p in predictions)


@pytest.mark.parametrize(
    "command",
    ["ls -la", "cat a b | sort -u", "grep -rn TODO . 2>/dev/null; wc -l a", "find . -name '*.py'", "git log --oneline",
     "sed -n 5p a", "echo 'a > b'", "pwd && ls", "cat < a", "ls 2>&1"],
)  # fmt: skip
def test_reading_commands_change_nothing(command: str) -> None:
    assert not may_change_state(command)


@pytest.mark.parametrize(
    "command",
    ["touch a", "echo 1 > a", "cat a >> b", "find . -delete", "find . -exec rm {} +", "sed -i s/a/b/ c", "cd src",
     "sed -ni p c", "sed 'w out' c", "make", "sort -o a a", "git commit -am x", "ls; rm a", "ls &", "echo $(rm a)",
     "cat <<EOF", "ls\nrm a", "export A=1", "A=1", "'unclosed", "ls 2> errors", "cat a | tee b", "(rm a)", "git", 3,
     "echo hi >| a", "cat a &> b", "tree -o x", "printf -v x y"],
)  # fmt: skip
def test_everything_else_may(command: object) -> None:
    assert may_change_state(command)


def test_the_middle_of_a_truncated_observation_is_not_compared() -> None:
    truncated = "line 1\nline 2\n[... 9000 bytes elided ...]\nline 999\n" + DONE
    assert may_continue("line 1\nline 2\nline 3", truncated)
    assert may_continue("line 1\nli", truncated)
    assert not may_continue("line 1\nline X", truncated)
    assert not may_continue("line 1\nline X\nline 3", truncated)


def test_a_character_cut_in_two_is_not_compared() -> None:
    assert may_continue("caf\ufffd", "café\n" + DONE)
    assert not may_continue("cef\ufffd", "café\n" + DONE)


def test_only_an_empty_partial_fits_an_observation_that_is_no_text() -> None:
    assert may_continue("", 3)
    assert not may_continue("3", 3)
