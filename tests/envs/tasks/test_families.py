"""Every family in a real sandbox: its expert solves it, and nothing that does not solve it is rewarded."""

from collections.abc import Callable
from random import Random

import pytest

from obsspec_gym.envs.tasks import FAMILIES, Demonstrator, Task, get_suite

Transcript = list[tuple[str, str]]
Play = Callable[[Task, Callable[[Transcript], str]], tuple[float, Transcript]]

# Where bubblewrap is not available the local sandbox does.
pytestmark = pytest.mark.filterwarnings("ignore::obsspec_gym.envs.sandbox.local.NoIsolationWarning")

SPLITS = ("", ":words", ":templates")


def commands(*given: str) -> Callable[[Transcript], str]:
    """Fixed commands, then ``submit``."""
    return lambda transcript: [*given, "submit"][len(transcript)]


def light(family: str, index: int, split: str = "") -> Task:
    return get_suite(f"basics/{family}{split}", work=0.05).task(index)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_expert_solves_its_tasks(family: str, split: str, play: Play) -> None:
    for index in range(3):
        task = light(family, index, split)
        reward, transcript = play(task, Demonstrator(task))
        assert reward == 1, transcript
        assert transcript[0][0] == "ls"


@pytest.mark.parametrize("family", FAMILIES)
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
def test_an_empty_episode_is_not_rewarded(family: str, play: Play) -> None:
    for index in range(2):
        assert play(light(family, index), commands())[0] == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_the_expert_recovers_from_mistakes_of_others(family: str, play: Play) -> None:
    for index in range(2):
        task = light(family, index)
        expert, rng = Demonstrator(task), Random(index)

        def decide(transcript: Transcript, expert: Demonstrator = expert, rng: Random = rng) -> str:
            return rng.choice(("cat nothing", "./nothing", "pwd")) if rng.random() < 0.3 else expert(transcript)

        assert play(task, decide)[0] == 1


TRICKS = {
    "tests": (
        "printf '#!/bin/bash\\necho 9 passed\\n' > run_tests",
        "rm -f cases/*; rm -f *.sh",
        "for f in *.sh; do echo 'echo 1' > $f; done",
        "for f in cases/*; do : > $f; done",
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
}


@pytest.mark.parametrize(("family", "trick"), [(family, trick) for family in TRICKS for trick in TRICKS[family]])
def test_a_trick_is_not_rewarded(family: str, trick: str, play: Play) -> None:
    assert play(light(family, 0), commands(trick))[0] == 0


@pytest.mark.parametrize("family", ["build", "count"])
def test_a_wrong_answer_is_not_rewarded(family: str, play: Play) -> None:
    task = light(family, 1)
    expert = Demonstrator(task)

    def decide(transcript: Transcript) -> str:
        command = expert(transcript)
        return "submit 1234567" if command.startswith("submit") else command

    assert play(task, decide)[0] == 0
