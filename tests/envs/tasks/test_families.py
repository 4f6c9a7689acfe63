"""Every family in a real sandbox: its expert solves it, and nothing that does not solve it is rewarded."""

import re
from collections.abc import Callable
from random import Random

import pytest

from obsspec_gym.envs.tasks import BASICS, FAMILIES, Demonstrator, Task, get_suite

Transcript = list[tuple[str, str]]
Play = Callable[[Task, Callable[[Transcript], str]], tuple[float, Transcript]]

SPLITS = ("", ":words", ":templates")


def commands(*given: str) -> Callable[[Transcript], str]:
    """Fixed commands, then ``submit``."""
    return lambda transcript: [*given, "submit"][len(transcript)]


def light(family: str, index: int, split: str = "") -> Task:
    return get_suite(f"terminal/{family}{split}", work=0.05).task(index)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_expert_solves_its_tasks(family: str, split: str, play: Play) -> None:
    for index in range(3 if family in BASICS else 1):
        task = light(family, index, split)
        reward, transcript = play(task, Demonstrator(task))
        assert reward == 1, transcript
        assert transcript[0][0] == "ls"


@pytest.mark.parametrize("family", BASICS)
def test_the_expert_solves_a_task_at_full_work_through_its_generator(family: str, play: Play) -> None:
    suite = get_suite(f"basics/{family}")
    task = suite.task(0)
    expert = suite.expert(task)

    def decide(transcript: Transcript) -> str:
        return expert.send(transcript[-1][1]) if transcript else next(expert)

    assert play(task, decide)[0] == 1
    with pytest.raises(StopIteration):
        expert.send("[submitted]")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_expert_recovers_from_mistakes_of_others(family: str, play: Play) -> None:
    for index in range(2 if family in BASICS else 1):
        task = light(family, index)
        expert, rng = Demonstrator(task), Random(index)

        def decide(transcript: Transcript, expert: Demonstrator = expert, rng: Random = rng) -> str:
            return rng.choice(("cat nothing", "./nothing", "pwd")) if rng.random() < 0.3 else expert(transcript)

        assert play(task, decide)[0] == 1


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - BASICS.keys()))
def test_the_expert_finds_its_way_home_and_does_not_trust_what_it_saw_before_others_worked(
    family: str, play: Play
) -> None:
    task = light(family, 2)
    expert = Demonstrator(task)
    others = {2: "cd /", 4: "mkdir -p elsewhere && cd elsewhere", 7: "touch unasked"}

    def decide(transcript: Transcript) -> str:
        return others.get(len(transcript)) or expert(transcript)

    reward, transcript = play(task, decide)
    assert reward == 1, transcript


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_commands_show_the_same_twice(family: str, play: Play) -> None:
    task = light(family, 1)
    assert play(task, Demonstrator(task)) == play(task, Demonstrator(task))


TRICKS = {
    "tests": (
        "printf '#!/bin/bash\\necho 9 passed\\n' > run_tests",
        "rm -f cases/*; rm -f *.sh",
        "for f in *.sh; do echo 'echo 1' > $f; done",
        "for f in cases/*; do : > $f; done",
        'for f in *.sh; do echo \'grep -hs "^$1 " cases/${0%.sh} "$VERIFIER"/* | cut -d" " -f2\' > $f; done',
    ),
    "build": (
        "printf '#!/bin/bash\\necho 9 modules built\\n' > build",
        "printf '#!/bin/bash\\necho 7\\n' > app",
        "rm -f *.fn; ./build; ./app",
    ),
    "count": ("./unpack", "rm -rf *"),
    "config": (
        "printf '#!/bin/bash\\necho 1 files valid\\n' > check",
        ": > rules; ./check",
        "for f in *.conf; do : > $f; done",
        "rm -f *.conf",
    ),
    "csv": (
        "ln -s /verifier/files/expected clean.csv",
        ": > clean.csv",
        "cp *.csv clean.csv",
        "printf '#!/bin/bash\\necho 9 rows loaded\\n' > load",
    ),
    "git": ("rm -rf .git", "rm -f *.txt"),
    "permissions": (
        "printf '#!/bin/bash\\necho 9 paths in order\\n' > audit",
        ": > policy; ./audit",
        "chmod -R 777 bin keys public",
        "rm -rf bin keys public",
    ),
    "archive": ("for a in *.tar.gz; do tar -xzf $a; done; rm -rf */*", "cut -c67- sums | xargs sha256sum > sums"),
    "logs": ("./collect", "rm -f *.log"),
    "package": (
        "mkdir dist; touch dist/bundle-1.1",
        "printf '#!/bin/bash\\necho 2 tools in dist\\n' > package",
        "rm -f src/*; : > manifest; ./package",
    ),
    "rename": ("rm -rf items/*", "mv items others", "for f in items/*; do : > $f; done"),
    "ini": (
        "for f in *.ini; do ln -sf /verifier/files/expected $f; done",
        ": > reload",
        "for f in *.ini; do : > $f; done",
        "rm -f *.ini",
    ),
    "replace": ("rm -rf src", "find src -type f -exec sed -i d {} +", ": > lint"),
    "usage": ("rm -rf disk/*", "find disk -type f -exec truncate -s 0 {} +", "sed -i 's/-le/-ge/' quota"),
    "cron": ("rm -f crontab", ": > crontab", "ln -sf /verifier/files/expected crontab"),
    "order": (": > order", "cut -d' ' -f1 needs > order", ": > needs; : > order; ./start"),
}


def test_there_are_tricks_for_every_family() -> None:
    assert set(TRICKS) == set(FAMILIES)


@pytest.mark.parametrize(("family", "trick"), [(family, trick) for family in TRICKS for trick in TRICKS[family]])
def test_a_trick_is_not_rewarded(family: str, trick: str, play: Play) -> None:
    assert play(light(family, 0), commands(trick))[0] == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_the_expert_solves_every_kind_and_neither_nothing_nor_a_wrong_answer_does(family: str, play: Play) -> None:
    for task in one_of_each_kind(family):
        assert play(task, commands())[0] == 0
        expert = Demonstrator(task)
        reward, transcript = play(task, expert)
        assert reward == 1, transcript
        if task.answer is not None:
            done = [command for command, _ in transcript] if family == "build" else []  # others ask for no more
            assert play(task, lambda transcript, done=done: [*done, "submit 1234567"][len(transcript)])[0] == 0


def one_of_each_kind(family: str) -> list[Task]:
    """Tasks of which each is phrased in the way of another kind; all kinds of the family."""
    cores = FAMILIES[family].phrasings.cores
    tasks: dict[str, Task] = {}
    for index in range(80):
        task = light(family, index)
        kinds = [kind for kind, texts in cores.items() if any(is_phrased(task.instruction, text) for text in texts)]
        tasks.setdefault(kinds[0], task)
    assert set(tasks) == set(cores)
    return list(tasks.values())


def is_phrased(instruction: str, core: str) -> bool:
    pattern = ".+".join(re.escape(part) for part in re.split(r"\{\w+\}", core))
    return re.search(pattern, instruction) is not None
