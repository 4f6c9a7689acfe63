"""What the families of the suite ``terminal`` share: ways to begin and end an instruction, and reading a transcript."""

from __future__ import annotations

import re
from collections.abc import Sequence

from obsspec_gym.envs.tasks.family import Step, body

LEADS: tuple[str, ...] = (
    "", "", "", "Hi. ", "Please help: ", "Next task. ", "Hello, ", "A small job: ", "Urgent: ", "From the queue: ",
)  # fmt: skip
TAILS: tuple[str, ...] = ("", "", "", " Thanks.", " Submit at the end.", " Start with ls.", " Nothing else is needed.")
HELD_OUT_LEADS: tuple[str, ...] = ("", "Good morning! ", "Ticket for you - ", "Dear agent, ")
HELD_OUT_TAILS: tuple[str, ...] = ("", " Cheers.", " No rush.", " Be quick!")

# fmt: off
_READERS = frozenset({
    "awk", "cat", "cd", "comm", "cut", "diff", "du", "echo", "find", "grep", "head", "ls", "nl", "pwd", "sha256sum",
    "sort", "stat", "tac", "tail", "test", "tr", "tsort", "uniq", "wc",
})
# fmt: on
_WRITES = re.compile(r"[>;&`\n]|\$\(|\s-(delete|exec|execdir|ok|fprint)\b|\bsystem\b")
_NOTHING_RAN = re.compile(r"\[exit 12[67]\] \S+$")


def astray(transcript: Sequence[Step]) -> bool:
    """Whether the shell is anywhere but at home."""
    return bool(transcript) and not transcript[-1][1].endswith("] ~")


def reads_only(command: str) -> bool:
    """Whether a command certainly changes no file; one that is not known is taken to change some."""
    if _WRITES.search(command):
        return False
    return all(stage.split()[:1] and stage.split()[0] in _READERS for stage in command.split("|"))


def shown(transcript: Sequence[Step], command: str, *harmless: str) -> str | None:
    """What a command last showed, if no file can have changed since; ``None`` otherwise.

    Args:
        transcript: What was done and seen.
        command: The command asked about.
        *harmless: Commands that do not change what it showed.
    """
    for done, observation in reversed(transcript):
        if done == command:
            return observation
        if not (done in harmless or reads_only(done) or _NOTHING_RAN.search(observation)):
            return None
    return None


def succeeded(transcript: Sequence[Step], command: str, *harmless: str) -> bool:
    """Whether a command's last run ended well and still stands; see :func:`shown`."""
    observation = shown(transcript, command, *harmless)
    return observation is not None and observation.endswith("[exit 0] ~")


def read(transcript: Sequence[Step], command: str) -> str | None:
    """What a command printed when it last ended well, whatever came after; ``None`` before that."""
    for done, observation in reversed(transcript):
        if done == command and observation.endswith("[exit 0] ~"):
            return body(observation)
    return None


def ask(transcript: Sequence[Step], query: str, *harmless: str) -> str:
    """Asks one question, then hands in what it printed."""
    observation = shown(transcript, query, *harmless)
    return query if observation is None else f"submit {body(observation)}"
