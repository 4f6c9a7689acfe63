"""Questions that a repository's history answers, a file to bring back from it, a fault to find in it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from obsspec_gym.envs.tasks.families.common import (
    HELD_OUT_LEADS,
    HELD_OUT_TAILS,
    LEADS,
    TAILS,
    ask,
    read,
    shown,
    succeeded,
)
from obsspec_gym.envs.tasks.family import OWN_FILES, Phrasings, Scene, Step, body, listed, repetitions
from obsspec_gym.envs.tasks.words import Words

PROBE = """\
#!/bin/bash
# Tests the project as it is checked out; stops at the first fault.
for name in {names}; do
  [ -f "$name.txt" ] || {{ echo "$name.txt is missing"; exit 1; }}
  for _ in $(seq {rounds}); do sha256sum "$name.txt" > /dev/null; done
  while read -r key value; do
    [ "$value" -lt 100 ] || {{ echo "$name.txt: $key is $value"; exit 1; }}
  done < "$name.txt"
done
echo "{count} files are good"
"""

SETUP = """\
git init -q -b main . && git fast-import --quiet < .history && git reset -q --hard && rm .history &&
touch -d @1704067200 * .
"""

QUERIES: Mapping[str, str] = {
    "author": "git log -1 --format=%an -- {file}",
    "commits": "git log --author={author} --oneline | wc -l",
    "touched": "git log --oneline -- {file} | wc -l",
    "origin": "git log -S {key} --reverse --format=%s | head -n 1",
}
"""What answers each kind of question."""

_ROUNDS = 40
_START = 1_700_000_000
_BISECT = "git bisect start main v1"
_FIRST_BAD = re.compile(r"^([0-9a-f]{40}) is the first bad commit", re.MULTILINE)


class GitHistory:
    """A repository of a few text files and six to nine commits by three people."""

    name = "git"
    phrasings = Phrasings(
        leads=LEADS,
        cores={
            "author": (
                "who made the last commit to {file}?",
                "submit the author of the latest change of {file}.",
                "which author changed {file} last?",
                "find in the git log who touched {file} most recently.",
                "name the author of the newest commit on {file}.",
                "the last author of {file} is wanted.",
                "by whom is the latest commit to {file}?",
                "report the author name of the last change to {file}.",
            ),
            "commits": (
                "how many commits are by {author}?",
                "count the commits of {author}.",
                "submit the number of commits that {author} made.",
                "find in the git log how many commits {author} has.",
                "the number of {author}'s commits is wanted.",
                "how often did {author} commit?",
                "give the count of commits with author {author}.",
                "report how many changes {author} committed.",
            ),
            "touched": (
                "how many commits changed {file}?",
                "count the commits to {file}.",
                "submit the number of commits that touch {file}.",
                "find in the git log how many commits {file} has.",
                "the number of commits on {file} is wanted.",
                "how often was {file} committed?",
                "give the count of commits that changed {file}.",
                "report how many commits concern {file}.",
            ),
            "origin": (
                "which commit brought in {key}? Submit its message.",
                "submit the message of the commit that added {key}.",
                "find the commit that introduced {key}; its message is the answer.",
                "{key} was added by which commit? Give the message.",
                "the message of the first commit with {key} is wanted.",
                "look in the git log for the commit that adds {key} and submit its message.",
                "when did {key} come in? Answer with the commit message.",
                "report the message of the commit where {key} first occurs.",
            ),
            "restore": (
                "{file} was deleted by mistake. Bring it back from git.",
                "restore {file} from the history.",
                "./probe says that {file} is missing. Get it back from git.",
                "somebody removed {file}. Recover the last version.",
                "we need {file} again as it was before it was deleted.",
                "undo the deletion of {file}.",
                "{file} is gone since a commit. Check it out from the commit before.",
                "recover {file} from git and run ./probe.",
            ),
            "bisect": (
                "./probe fails on main and passed at v1. Which commit broke it? Submit its message.",
                "find the first bad commit between v1 and main with ./probe; submit its message.",
                "use git bisect with ./probe (good is v1) and submit the message of the bad commit.",
                "since v1 something broke ./probe. Submit the message of the commit that did.",
                "bisect: v1 good, main bad, test ./probe. The message of the culprit is the answer.",
                "which commit after v1 made ./probe fail? Answer with its message.",
                "a commit after v1 broke the project, ./probe shows it. Find it and submit its message.",
                "track down the commit that broke ./probe, from v1 on; its message, please.",
            ),
        },
        tails=TAILS,
    )
    held_out_phrasings = Phrasings(
        leads=HELD_OUT_LEADS,
        cores={
            "author": (
                "I would like to thank whoever edited {file} in its current state.",
                "whose work is the present version of {file}?",
                "tell me whom to ask about the recent edit in {file}.",
            ),
            "commits": (
                "I would like to know how active {author} is: commits in total.",
                "what is the total of {author}'s contributions, in commits?",
                "tell me the number of entries in the log that {author} wrote.",
            ),
            "touched": (
                "I would like to know how lively {file} is: commits in total.",
                "what is the total of edits to {file}, in commits?",
                "tell me the number of entries in the log that deal with {file}.",
            ),
            "origin": (
                "I would like to know where {key} stems from: the log message, please.",
                "what does the log say for the first appearance of {key}?",
                "tell me under which message {key} entered the project.",
            ),
            "restore": (
                "I would like to have {file} back, it used to be part of the project.",
                "what became of {file}? Put it back in place.",
                "our project is incomplete without {file}, take it out of the past.",
            ),
            "bisect": (
                "I would like to know what ruined the project after v1, as ./probe can tell: the log message, please.",
                "what does the log say for the change that made ./probe unhappy? v1 was fine.",
                "tell me under which message the fault that ./probe sees entered; v1 had none.",
            ),
        },
        tails=HELD_OUT_TAILS,
    )

    def scene(self, rng: Random, words: Words, phrasings: Phrasings, work: float) -> Scene:
        """Draws a repository and what is asked about it."""
        kind = rng.choice(("author", "commits", "touched", "origin", "restore", "bisect", "bisect"))
        names, authors = sorted(words.several(3)), words.several(3)
        commits = _history(rng, words, names, authors, faulty=kind == "bisect")
        lost = f"{rng.choice(names)}.txt"
        if kind == "restore":
            gone = {path: text for path, text in commits[-1].tree.items() if path != lost}
            commits.append(_Commit(rng.choice(authors), f"tidy {words.draw()}", gone, frozenset({lost})))
        asked = rng.choice(commits[2:])
        facts = {"kind": kind, "file": rng.choice(names) + ".txt", "author": rng.choice(authors), "key": asked.key}
        if kind == "restore":
            facts["file"] = lost
        rounds = repetitions(_ROUNDS, work)
        files = {
            ".history": _stream(commits),
            "probe": PROBE.format(names=" ".join(names), rounds=rounds, count=len(names)),
        }
        instruction = phrasings.instruction(rng, kind, **facts)
        if kind == "restore":
            check = OWN_FILES + f'own {lost}; cmp -s {lost} "$VERIFIER/expected"\n'
            expected, answer = {"expected": commits[-2].tree[lost]}, None
        else:
            check, expected, answer = "", {}, _answer(commits, facts)
        return Scene(instruction, files, check, expected, answer, facts=facts, setup=SETUP, requires=("git",))

    def decide(self, scene: Scene, transcript: Sequence[Step]) -> str:
        """Lists, then asks the history."""
        if not listed(transcript):
            return "ls"
        kind, file = scene.facts["kind"], scene.facts["file"]
        if kind == "bisect":
            return _bisect(transcript)
        if kind != "restore":
            return ask(transcript, QUERIES[kind].format(**scene.facts))
        last = read(transcript, f"git log -1 --format=%h -- {file}")
        if last is None:
            return f"git log -1 --format=%h -- {file}"
        back = f"git checkout {last}~1 -- {file}"
        if not succeeded(transcript, back, "./probe"):
            return back
        return "submit" if shown(transcript, "./probe") else "./probe"


@dataclass(frozen=True)
class _Commit:
    """A commit: the whole tree after it, the paths it changed or removed, and a word that it brought in."""

    author: str
    message: str
    tree: Mapping[str, str]
    touched: frozenset[str]
    key: str = ""
    bad: bool = False


def _history(rng: Random, words: Words, names: Sequence[str], authors: Sequence[str], *, faulty: bool) -> list[_Commit]:
    """Commits that each add one line; with a fault, one of them adds a value that the probe refuses."""
    first = {f"{name}.txt": f"{words.draw()} {rng.randint(10, 99)}\n" for name in names}
    commits = [_Commit(rng.choice(authors), f"start {words.draw()}", first, frozenset(first))]
    count = rng.randint(5, 8)
    bad = rng.randint(1, count) if faulty else -1
    for number in range(1, count + 1):
        path, key = f"{rng.choice(names)}.txt", words.draw()
        value = rng.randint(100, 999) if number == bad else rng.randint(10, 99)
        tree = {**commits[-1].tree}
        tree[path] += f"{key} {value}\n"
        message = f"{rng.choice(('add', 'extend', 'improve', 'describe'))} {words.draw()}"
        commits.append(_Commit(rng.choice(authors), message, tree, frozenset({path}), key, number == bad))
    return commits


def _answer(commits: Sequence[_Commit], facts: Mapping[str, str]) -> str:
    """What the question's answer is, worked out without git."""
    match facts["kind"]:
        case "author":
            return next(commit.author for commit in reversed(commits) if facts["file"] in commit.touched)
        case "commits":
            return str(sum(commit.author == facts["author"] for commit in commits))
        case "touched":
            return str(sum(facts["file"] in commit.touched for commit in commits))
        case "origin":
            return next(commit.message for commit in commits if commit.key == facts["key"])
        case _:
            return next(commit.message for commit in commits if commit.bad)


def _stream(commits: Sequence[_Commit]) -> str:
    """What ``git fast-import`` makes the repository of: fixed people and times give fixed hashes."""
    lines = []
    for number, commit in enumerate(commits):
        who = f"{commit.author} <{commit.author}@example.org> {_START + 3600 * number} +0000"
        lines.append(f"commit refs/heads/main\nmark :{number + 1}\nauthor {who}\ncommitter {who}")
        lines.append(f"data {len(commit.message)}\n{commit.message}")
        for path in sorted(commit.touched):
            text = commit.tree.get(path)
            lines.append(f"D {path}" if text is None else f"M 100644 inline {path}\ndata {len(text)}\n{text}")
    return "\n".join([*lines, "reset refs/tags/v1", "from :1", "", ""])


def _bisect(transcript: Sequence[Step]) -> str:
    found = _FIRST_BAD.search(read(transcript, "git bisect run ./probe") or "")
    if found:
        return ask(transcript, f"git show -s --format=%s {found[1]}")
    if transcript[-1][0] == _BISECT and "unknown revision" not in body(transcript[-1][1]):
        return "git bisect run ./probe"
    return _BISECT
