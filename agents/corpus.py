"""Episodes as training data: what is stored of one, and the tokens and loss weights it becomes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer

from obsspec_gym.agents.dialogue import ACT, END, OBS, TASK
from obsspec_gym.envs.tasks.family import Step


class Turn(NamedTuple):
    """One turn of a recorded episode.

    Attributes:
        command: What was executed.
        observation: What came back.
        taught: Whether the expert would have done the same: only then is the command a lesson for the policy.
        seconds: Wall seconds the tool ran.
    """

    command: str
    observation: str
    taught: bool
    seconds: float


@dataclass(frozen=True)
class Episode:
    """A recorded episode.

    Attributes:
        task_id: The task.
        instruction: The first observation.
        turns: Oldest first.
        reward: What the verifier said.
        submitted: Whether it ended with ``submit``; otherwise it was cut off.
    """

    task_id: str
    instruction: str
    turns: tuple[Turn, ...]
    reward: float
    submitted: bool


LONGEST = 128
"""Tokens of a command, at most; the longest of the experts name a dozen files."""

SUITES = ("basics", "terminal")
"""What is recorded, sixteen tasks of each in turn: every family, and those of ``basics`` (the first four of them) more
often than the others, which leaves reinforcement learning something to improve."""

SLOW = frozenset(
    f"./{name}"
    for name in (
        *("run_tests", "build", "check", "unpack", "audit", "collect", "index", "lint"),
        *("load", "package", "probe", "quota", "reload", "simulate", "start", "verify"),
    )
)
"""The programs that take time, one a family: what they print is what is worth foreseeing."""


class Example(NamedTuple):
    """Token ids of one episode, and how much each of them counts in each model's loss; 0 is not learnt."""

    ids: list[int]
    policy: list[float]
    world: list[float]


def save(episodes: Iterable[Episode], path: Path) -> None:
    """Writes episodes as JSON lines."""
    with path.open("w", buffering=1) as file:
        for episode in episodes:
            file.write(json.dumps(asdict(episode)) + "\n")


def load(path: Path) -> Iterator[Episode]:
    """Reads what :func:`save` wrote."""
    with path.open() as file:
        for line in file:
            record = json.loads(line)
            record["turns"] = tuple(Turn(*turn) for turn in record["turns"])
            yield Episode(**record)


def encode(episode: Episode, tokenizer: Tokenizer, slow: float = 1.0) -> Example:
    """The compact dialogue of an episode.

    A policy learns the taught commands of solved episodes; a world model every observation and the token after
    it, which tells whether the episode goes on.

    Args:
        episode: What was recorded.
        tokenizer: With the control tokens.
        slow: How much more the observations of :data:`SLOW` programs count than others.
    """
    task, act, obs, end = (tokenizer.token_to_id(name) for name in (TASK, ACT, OBS, END))

    def plain(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    instruction = plain(episode.instruction)
    ids = [task, *instruction, act]
    policy, world = [0.0] * len(ids), [0.0] * len(ids)
    for number, turn in enumerate(episode.turns, 1):
        command, observation = plain(turn.command), plain(turn.observation)
        last = number == len(episode.turns)
        closing = [] if last and not episode.submitted else [end if last else act]
        ids += [*command, end, obs, *observation, *closing]
        lesson = float(turn.taught and episode.reward == 1)
        weight = slow if turn.command.split(" ")[0] in SLOW else 1.0
        policy += [lesson] * (len(command) + 1) + [0.0] * (1 + len(observation) + len(closing))
        world += [0.0] * (len(command) + 2) + [weight] * (len(observation) + len(closing))
    return Example(ids, policy, world)


def dialogue(tokenizer: Tokenizer, instruction: str, transcript: Iterable[Step]) -> list[int]:
    """The compact dialogue up to where the next command is written, as token ids."""
    turns = tuple(Turn(command, observation, taught=False, seconds=0.0) for command, observation in transcript)
    ids = encode(Episode("", instruction, turns, reward=0.0, submitted=False), tokenizer).ids
    return [*ids, tokenizer.token_to_id(ACT)] if turns else ids


def command_of(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """The command that a completion stands for: without control tokens, and without NUL, which no shell takes."""
    text: str = tokenizer.decode(ids, skip_special_tokens=True)
    return text.replace("\0", "")
