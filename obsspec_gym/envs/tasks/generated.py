"""Generated suites: families, a vocabulary, phrasings, and any number of tasks."""

from __future__ import annotations

import enum
import re
import sys
from collections.abc import Mapping, Sequence
from random import Random

from obsspec_gym.envs.tasks import families
from obsspec_gym.envs.tasks.build import Build
from obsspec_gym.envs.tasks.config import Config
from obsspec_gym.envs.tasks.counting import Counting
from obsspec_gym.envs.tasks.families.common import astray
from obsspec_gym.envs.tasks.family import Family, Scene, Step
from obsspec_gym.envs.tasks.task import Expert, Task
from obsspec_gym.envs.tasks.unit_tests import UnitTests
from obsspec_gym.envs.tasks.words import TERMINAL_RESERVED, Vocabulary, Words
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.seeding import derive_seed
from obsspec_gym.types import SUBMIT

BASICS: Mapping[str, Family] = {family.name: family for family in (UnitTests(), Build(), Counting(), Config())}
"""The families of the suite ``basics``, by name; task ``i`` of ``basics`` belongs to family ``i % 4``."""

FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        *BASICS.values(),
        families.CsvCleaning(),
        families.GitHistory(),
        families.Permissions(),
        families.Archives(),
        families.AccessLogs(),
        families.Packaging(),
        families.Renaming(),
        families.Settings(),
        families.Substitution(),
        families.DiskUsage(),
        families.Schedule(),
        families.StartOrder(),
    )
}
"""All families, those of the suite ``terminal``, by name; task ``i`` of ``terminal`` belongs to family ``i % 16``."""

EVALUATION = range(10_000)
"""Indices that are for evaluation only: nothing is ever trained on them, in any suite or split."""

_MAX_TURNS = 16


class Split(enum.Enum):
    """What of a suite's tasks a policy may have seen in training."""

    TRAIN = ""
    """Words and phrasings of training; indices outside :data:`EVALUATION` are for training."""
    WORDS = "words"
    """Held-out words, phrasings of training."""
    TEMPLATES = "templates"
    """Words of training, held-out phrasings."""


class GeneratedSuite:
    """An unlimited suite of generated tasks.

    Args:
        families: Names of families; index ``i`` belongs to the ``i % len(families)``-th.
        split: Which words and phrasings.
        work: Scales how much the slow programs of a task have to do, and so how long they take. What they print
            stays the same.
        name: What the suite is called.

    Raises:
        InvalidArgumentError: If a family is unknown or ``work`` is not in (0, 10].

    Example:
        >>> suite = GeneratedSuite(["config"])
        >>> suite.task(3) == suite.task(3)
        True
    """

    def __init__(
        self, families: Sequence[str], split: Split = Split.TRAIN, *, work: float = 1.0, name: str = "generated"
    ) -> None:
        unknown = sorted(set(families) - set(FAMILIES))
        if unknown or not families:
            raise InvalidArgumentError(f"families are {', '.join(FAMILIES)}, got {', '.join(unknown) or 'none'}")
        if not 0 < work <= 10:
            raise InvalidArgumentError(f"work must be in (0, 10], got {work}")
        self._families = tuple(FAMILIES[family] for family in families)
        self._split = split
        self._work = work
        self._name = name

    @property
    def name(self) -> str:
        """What the suite is called on the command line."""
        return self._name

    def __len__(self) -> int:
        """Unlimited."""
        return sys.maxsize

    def task(self, index: int) -> Task:
        """The ``index``-th task.

        Raises:
            InvalidArgumentError: If the index is negative.
        """
        if not 0 <= index < len(self):
            raise InvalidArgumentError(f"a task index is in [0, {len(self)}), got {index}")
        family = self._families[index % len(self._families)]
        scene = _scene(family, self._split, self._work, index)
        return Task(
            id=_task_id(family, self._split, self._work, index),
            instruction=scene.instruction,
            files=scene.files,
            setup=scene.setup,
            verifier=scene.verifier,
            verifier_files=scene.verifier_files,
            trial=scene.trial,
            trial_files=scene.trial_files,
            tried=scene.tried,
            answer=scene.answer,
            requires=scene.requires,
            max_turns=_MAX_TURNS,
        )

    def expert(self, task: Task) -> Expert:
        """The scripted expert of a generated task, whichever suite it came from.

        Raises:
            InvalidArgumentError: If the task is not a generated one.
        """
        return _run(Demonstrator(task))


def _run(decide: Demonstrator) -> Expert:
    transcript: list[Step] = []
    while not transcript or transcript[-1][0].split(" ")[0] != SUBMIT:
        command = decide(transcript)
        observation = yield command
        transcript.append((command, observation))


class Demonstrator:
    """What the expert would do next in *any* situation of a task, also one that somebody else got it into.

    Args:
        task: A generated task.

    Raises:
        InvalidArgumentError: If it is not.

    Example:
        >>> Demonstrator(GeneratedSuite(["config"]).task(0))([])
        'ls'
    """

    def __init__(self, task: Task) -> None:
        found = re.fullmatch(r"(?:basics|terminal)/(\w+)(?::(\w+))?/(\d+)(?:@(\S+))?", task.id)
        if found is None or found[1] not in FAMILIES:
            raise InvalidArgumentError(f"there is an expert for generated tasks only, got task {task.id!r}")
        self.family = FAMILIES[found[1]]
        self._scene = _scene(self.family, Split(found[2] or ""), float(found[4] or 1), int(found[3]))

    def __call__(self, transcript: Sequence[Step]) -> str:
        """The next command, given the commands so far and what each showed."""
        if self.family.name not in BASICS and astray(transcript):
            return "cd"
        return self.family.decide(self._scene, transcript)


def _task_id(family: Family, split: Split, work: float, index: int) -> str:
    split_suffix = f":{split.value}" if split.value else ""
    work_suffix = "" if work == 1 else f"@{work:g}"
    # A family of ``basics`` has one and the same task wherever it is asked for.
    home = "basics" if family.name in BASICS else "terminal"
    return f"{home}/{family.name}{split_suffix}/{index}{work_suffix}"


def _scene(family: Family, split: Split, work: float, index: int) -> Scene:
    """The one scene that family, split and index stand for."""
    rng = Random(derive_seed("scene", family.name, split.value, index))
    vocabulary = Vocabulary.HELD_OUT if split is Split.WORDS else Vocabulary.TRAIN
    phrasings = family.held_out_phrasings if split is Split.TEMPLATES else family.phrasings
    reserved = () if family.name in BASICS else TERMINAL_RESERVED
    return family.scene(rng, Words(rng, vocabulary, reserved), phrasings, work)
