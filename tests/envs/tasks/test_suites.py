"""Suites by name: pure in the index, splits that share neither words nor phrasings, errors that say what exists."""

import hashlib
import json
import re
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from obsspec_gym.envs.tasks import BASICS, FAMILIES, Demonstrator, GeneratedSuite, Suite, Task, get_suite, suite_names
from obsspec_gym.envs.tasks.words import HELD_OUT_WORDS
from obsspec_gym.errors import InvalidArgumentError


def words_of(task: Task) -> set[str]:
    return set(re.findall(r"[a-z]+", " ".join([task.instruction, *task.files, *map(str, task.files.values())])))


@given(st.sampled_from(suite_names()), st.integers(0, sys.maxsize - 1))
@settings(max_examples=20)
def test_a_task_is_a_pure_function_of_suite_and_index(name: str, index: int) -> None:
    assert get_suite(name).task(index) == get_suite(name).task(index)


@pytest.mark.parametrize("name", suite_names())
def test_a_suite_is_a_suite_without_end_whose_tasks_differ(name: str) -> None:
    suite = get_suite(name)
    assert isinstance(suite, Suite)
    assert (suite.name, len(suite)) == (name, sys.maxsize)
    tasks = [suite.task(index) for index in range(20)]
    assert len({task.id for task in tasks}) == 20
    assert len({(task.instruction, *sorted(task.files.items())) for task in tasks}) == 20


@pytest.mark.parametrize(("suite", "families"), [("basics", BASICS), ("terminal", FAMILIES)])
def test_a_mixed_suite_takes_the_families_in_turn_and_shares_their_tasks(suite: str, families: Any) -> None:
    mixed = get_suite(f"{suite}:words")
    for index, family in enumerate(families):
        assert mixed.task(index) == get_suite(f"{suite}/{family}:words").task(index)


def test_a_suite_of_some_families_takes_them_in_turn() -> None:
    some = get_suite("basics/count+tests:templates")
    assert some.name == "basics/count+tests:templates"
    for index, family in enumerate(("count", "tests", "count")):
        assert some.task(index) == get_suite(f"basics/{family}:templates").task(index)


def test_there_are_sixteen_families_and_the_four_of_basics_are_the_same_in_both() -> None:
    assert list(FAMILIES)[:4] == list(BASICS) == ["tests", "build", "count", "config"]
    assert len(FAMILIES) == 16
    for family in BASICS:
        assert get_suite(f"terminal/{family}").task(7) == get_suite(f"basics/{family}").task(7)


# A shipped pair was trained on these: not a byte of what is seen may change.
@pytest.mark.parametrize(
    ("name", "work", "digest"),
    [
        ("basics", 1.0, "e5d97745a2315bf9265409b607ae1a642662b928971bcd0f9483a5608968a743"),
        ("basics:words", 1.0, "979adc71af9e72e2b35d8ac929334f011cd5d3da868caebfce64322798d9abba"),
        ("basics:templates", 1.0, "a7f864f366434824824a4e7973eddaf32fa907c5a47a4b26c59686ce2ee17d41"),
        ("basics", 0.1, "6082b442fad9cf3fdf265f8698501addead60736a90458c663694d80bd4002ad"),
    ],
)
def test_what_an_agent_sees_of_basics_is_what_it_was(name: str, work: float, digest: str) -> None:
    suite, found = get_suite(name, work=work), hashlib.sha256()
    for index in range(40):
        task = suite.task(index)
        scene = [task.id, task.instruction, sorted(task.files.items()), task.setup]
        rules = [task.answer, list(task.requires), task.max_turns, task.timeout]
        found.update(json.dumps([*scene, *rules]).encode())
    assert found.hexdigest() == digest


def test_how_the_tasks_of_basics_are_judged_changes_on_purpose_only() -> None:
    suite, found = get_suite("basics"), hashlib.sha256()
    for index in range(40):
        task = suite.task(index)
        tried = [task.trial, sorted(task.trial_files.items()), task.tried]
        found.update(json.dumps([task.verifier, sorted(task.verifier_files.items()), *tried]).encode())
    assert found.hexdigest() == "e141f05a8cfa286c4e9aa3294f4524c09de192476105f9ebff54cb41679e3634"


def test_nothing_of_a_trial_tells_what_is_expected() -> None:
    for index in range(8):
        task = get_suite("basics/tests").task(index)
        recorded = "".join(f"{name[6:]} {line}\n" for name in task.files if name.startswith("cases/")
                           for line in str(task.files[name]).splitlines())  # fmt: skip
        expected = task.tried.splitlines()
        assert len(expected) >= 8
        assert not [line for line in expected if line in recorded]
        assert not [line for line in expected if line in task.trial + str(task.trial_files)]


@pytest.mark.parametrize("family", FAMILIES)
def test_held_out_words_occur_in_their_split_only(family: str) -> None:
    for index in range(50):
        assert not words_of(get_suite(f"terminal/{family}").task(index)) & set(HELD_OUT_WORDS)
        assert words_of(get_suite(f"terminal/{family}:words").task(index)) & set(HELD_OUT_WORDS)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_held_out_phrasings_share_no_part_with_those_of_training(family: object) -> None:
    seen, held_out = family.phrasings, family.held_out_phrasings  # type: ignore[attr-defined]
    assert set(seen.cores) == set(held_out.cores)
    assert not {*filter(None, seen.leads)} & {*filter(None, held_out.leads)}
    assert not {*filter(None, seen.tails)} & {*filter(None, held_out.tails)}
    mentions = {core for cores in seen.cores.values() for core in cores}
    assert not mentions & {core for cores in held_out.cores.values() for core in cores}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_splits_share_no_instruction(family: str) -> None:
    instructions = [
        {suite.task(index).instruction for index in range(100)}
        for suite in (get_suite(f"terminal/{family}{split}") for split in ("", ":templates"))
    ]
    assert not instructions[0] & instructions[1]


def test_work_changes_how_long_it_takes_and_not_what_is_seen() -> None:
    light, whole = get_suite("terminal", work=0.1), get_suite("terminal")
    for index in range(32):
        assert light.task(index).id == f"{whole.task(index).id}@0.1"
        assert light.task(index).instruction == whole.task(index).instruction
        assert light.task(index).answer == whole.task(index).answer
        assert light.task(index).files != whole.task(index).files


NOT_SUITES = [
    "basic",
    "basics/",
    "basics/nope",
    "basics:nope",
    "basics:",
    "",
    "basics/tests:words/3",
    "basics/tests+nope",
    "basics/tests+",
    "basics/tests+tests",
    "basics/git",
]


@pytest.mark.parametrize("name", NOT_SUITES)
def test_an_unknown_name_is_refused_and_the_message_lists_what_exists(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"there are basics, basics/tests,.* basics/config:templates"):
        get_suite(name)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="index"):
        get_suite("basics").task(-1)
    with pytest.raises(InvalidArgumentError, match="work"):
        get_suite("basics", work=0)
    with pytest.raises(InvalidArgumentError, match="nope"):
        GeneratedSuite(["nope"])
    with pytest.raises(InvalidArgumentError, match="none"):
        GeneratedSuite([])
    with pytest.raises(InvalidArgumentError, match="elsewhere"):
        Demonstrator(Task(id="elsewhere/1", instruction=""))
