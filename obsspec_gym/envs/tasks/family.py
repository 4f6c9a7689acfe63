"""What a family of generated tasks is: a seeded maker of scenes, and a scripted expert that reacts to what it sees."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol, TypeAlias

from obsspec_gym.envs.tasks.words import Words

Step: TypeAlias = tuple[str, str]
"""A command and the observation it brought."""

OWN_FILES = r"""
# Ends the script unless each path is a file of the agent's own in this directory: no link leads there or elsewhere.
own() {
  local path links=() real=()
  for path; do [ -f "$path" ] && [ ! -L "$path" ] || exit 1; done
  mapfile -t links < <(stat -c %h -- "$@")
  mapfile -t -d '' real < <(realpath -z -- "$@")
  for path; do
    [ "${links[0]}" = 1 ] && [ "${real[0]}" = "$PWD/$path" ] || exit 1
    links=("${links[@]:1}") real=("${real[@]:1}")
  done
}
cd -P .
"""
"""How a verifier begins that reads files: a link that an agent made might lead to what is expected, a FIFO nowhere."""


@dataclass(frozen=True)
class Phrasings:
    """Ways of saying what is to be done; one instruction is a lead, a core and a tail.

    Attributes:
        leads: How an instruction may begin (often not at all).
        cores: What is to be done, by kind of task; filled in with ``str.format``.
        tails: How it may end.
    """

    leads: Sequence[str]
    cores: Mapping[str, Sequence[str]]
    tails: Sequence[str]

    def instruction(self, rng: Random, kind: str, /, **fields: str) -> str:
        """An instruction of a kind, drawn at random.

        Args:
            rng: Where the randomness comes from.
            kind: Key of :attr:`cores`.
            **fields: What the core's braces stand for.
        """
        core = rng.choice(self.cores[kind]).format(**fields)
        return f"{rng.choice(self.leads)}{core}{rng.choice(self.tails)}"


@dataclass(frozen=True)
class Scene:
    """A generated task before it has an identifier.

    Attributes:
        instruction: What the agent reads.
        files: Laid in the working directory.
        verifier: Bash; exit status 0 is reward 1. It runs nothing that the agent wrote. Empty where ``answer`` and
            ``tried`` say everything.
        verifier_files: Laid out of the agent's reach.
        answer: What has to be handed in, if anything.
        query: What the expert types once the scene is ready for it, where the observations do not tell.
        facts: What a reader understands from the instruction, by name; for the expert.
        setup: Bash that is run once the files are there.
        requires: Programs that must be in the sandbox, besides bash, coreutils and their like.
        trial: Bash that runs what the agent wrote.
        trial_files: Laid for the trial alone; nothing in them tells what is expected.
        tried: What the trial has to print.
    """

    instruction: str
    files: Mapping[str, str | bytes]
    verifier: str = ""
    verifier_files: Mapping[str, str] = field(default_factory=dict)
    answer: str | None = None
    query: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    setup: str = ""
    requires: tuple[str, ...] = ()
    trial: str = ""
    trial_files: Mapping[str, str] = field(default_factory=dict)
    tried: str = ""


class Family(Protocol):
    """A family of generated tasks."""

    @property
    def name(self) -> str:
        """One word; ``basics/NAME`` or ``terminal/NAME`` is its suite."""
        ...

    @property
    def phrasings(self) -> Phrasings:
        """The phrasings seen in training."""
        ...

    @property
    def held_out_phrasings(self) -> Phrasings:
        """Phrasings that no training task uses, in no part."""
        ...

    def scene(self, rng: Random, words: Words, phrasings: Phrasings, work: float) -> Scene:
        """Draws a scene.

        Args:
            rng: The scene is a pure function of its state.
            words: Where names come from.
            phrasings: Where the instruction comes from.
            work: Scales how much the scene's slow programs have to do; what they print stays the same.
        """
        ...

    def decide(self, scene: Scene, transcript: Sequence[Step]) -> str:
        """The expert: the next command, given everything seen so far, whoever chose the commands before."""
        ...


def body(observation: str) -> str:
    """An observation without its status line."""
    return observation.rpartition("\n")[0]


def listed(transcript: Sequence[Step]) -> list[str]:
    """The names the last successful ``ls`` printed; empty before one."""
    for command, observation in reversed(transcript):
        if command == "ls" and observation.endswith("[exit 0] ~"):
            return body(observation).split("\n")
    return []


def is_edit(command: str) -> bool:
    """Whether a command may have changed a file."""
    return bool(re.search(r"\bsed -i|>|\brm\b|\bmv\b|\bcp\b", command))


def since_edit(transcript: Sequence[Step], command: str) -> str | None:
    """What a command last showed, if no edit came after it; ``None`` otherwise."""
    for done, observation in reversed(transcript):
        if done == command:
            return observation
        if is_edit(done):
            return None
    return None


def substitute(old: str, new: str, file: str) -> str:
    """The command that replaces the first ``old`` on every line of a file."""
    return f"sed -i 's/{old}/{new}/' {file}"


def repetitions(base: int, work: float) -> int:
    """How often a slow program repeats its work; at least twice."""
    return max(2, round(base * work))
