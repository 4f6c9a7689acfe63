"""Find what takes the space of a disk, or make room on it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from random import Random

from obsspec_gym.envs.tasks.families.common import (
    HELD_OUT_LEADS,
    HELD_OUT_TAILS,
    LEADS,
    TAILS,
    ask,
    shown,
)
from obsspec_gym.envs.tasks.family import OWN_FILES, Phrasings, Scene, Step, listed, repetitions
from obsspec_gym.envs.tasks.words import Words

QUOTA = """\
#!/bin/bash
# Adds up the bytes of every file under disk/, reading each as a real scan does.
used=0
while IFS= read -r path; do
  for _ in $(seq {rounds}); do size=$(wc -c < "$path"); done
  used=$((used + size))
done < <(find disk -type f | sort)
[ "$used" -le {limit} ] || {{ echo "$used bytes used, {limit} allowed"; exit 1; }}
echo "$used bytes used, within the quota"
"""

VERIFIER = (
    OWN_FILES
    + """\
[ "$(find disk -type f | sort)" = "$(cat "$VERIFIER/paths")" ] || exit 1
while read -r size path; do
  own "$path"
  [ "$(wc -c < "$path")" = "$size" ] || exit 1
done < "$VERIFIER/sizes"
"""
)

QUERIES: Mapping[str, str] = {
    "largest": "find disk -type f -printf '%s %f\\n' | sort -n | tail -n 1 | cut -d' ' -f2",
    "folder": "du -b disk/* | sort -n | tail -n 1 | cut -d/ -f2",
    "total": "find disk -type f -name '*.{ending}' -printf '%s\\n' | paste -sd+ | awk -F+ '{{for (i = 1; i <= NF; i++) "
    "sum += $i}} END {{print sum}}'",
    "above": "find disk -type f -size +{limit}c | wc -l",
}
"""What answers each kind of question."""

_ENDINGS = ("tmp", "dat", "txt", "bak")
_ROUNDS = 6


class DiskUsage:
    """A directory ``disk`` with three folders of files of different sizes."""

    name = "usage"
    phrasings = Phrasings(
        leads=LEADS,
        cores={
            "largest": (
                "which file under disk is the largest?",
                "submit the name (without folders) of the largest file under disk.",
                "find the biggest file below disk and submit its name.",
                "the name of the largest file in any folder of disk is wanted.",
                "name the file on disk that has the most bytes.",
                "of all files below disk, which has the greatest size?",
                "report which file takes the most space under disk.",
                "look for the largest file in disk and its folders.",
            ),
            "folder": (
                "which folder of disk is the largest?",
                "submit the name of the folder in disk that holds the most bytes.",
                "find the biggest folder below disk and submit its name.",
                "the name of the largest folder in disk is wanted.",
                "name the folder on disk that takes the most space.",
                "of the folders in disk, which has the greatest total size?",
                "report which folder of disk uses most bytes.",
                "look for the largest of the folders in disk.",
            ),
            "total": (
                "how many bytes do all .{ending} files under disk have together?",
                "submit the total size of the .{ending} files under disk, in bytes.",
                "add up the sizes of the .{ending} files below disk.",
                "the sum of the bytes of all *.{ending} below disk is wanted.",
                "how much space do the {ending} files on disk take, in bytes?",
                "of all files below disk, sum the sizes of those that end in .{ending}.",
                "report the bytes that .{ending} files use under disk.",
                "count the bytes in all .{ending} files of disk.",
            ),
            "above": (
                "how many files under disk have more than {limit} bytes?",
                "submit the number of files larger than {limit} bytes under disk.",
                "count the files below disk that are over {limit} bytes.",
                "the number of files of more than {limit} bytes below disk is wanted.",
                "how many files on disk are bigger than {limit} bytes?",
                "of all files below disk, how many exceed {limit} bytes?",
                "report how many files of disk are larger than {limit} bytes.",
                "find the files over {limit} bytes in disk and submit how many there are.",
            ),
            "free": (
                "disk is over its quota. Delete all .{ending} files under it and run ./quota.",
                "remove every .{ending} file below disk, nothing else.",
                "make room: the .{ending} files on disk can go.",
                "./quota fails. Delete the {ending} files in all folders of disk.",
                "free space by deleting *.{ending} everywhere under disk.",
                "delete the files that end in .{ending} under disk until ./quota passes.",
                "all .{ending} files in disk are garbage. Remove them.",
                "clean disk: no .{ending} files may be left.",
            ),
        },
        tails=TAILS,
    )
    held_out_phrasings = Phrasings(
        leads=HELD_OUT_LEADS,
        cores={
            "largest": (
                "our storage is filling up, the worst single offender under disk, please.",
                "tell me what one should look at first on disk, being bulkier than any other item.",
                "if I could move one item off disk, which would help me best?",
            ),
            "folder": (
                "our storage is filling up, the worst directory under disk, please.",
                "tell me which directory one should look at first on disk, being bulkier than the rest.",
                "if I could move one directory off disk, which would help me best?",
            ),
            "total": (
                "our storage is filling up, what do we owe to {ending} under disk? In bytes.",
                "tell me what we would gain without any {ending} on disk, in bytes.",
                "if I could do without {ending} on disk, how many bytes would that make?",
            ),
            "above": (
                "our storage is filling up, what amount of items under disk is beyond {limit} bytes?",
                "tell me the amount of items on disk beyond {limit} bytes.",
                "if I limited items on disk to {limit} bytes, what amount would be refused?",
            ),
            "free": (
                "our storage is filling up, {ending} under disk is what we can do without.",
                "nobody needs any {ending} on disk, so get rid of that.",
                "I cannot work any more, disk is full of {ending}; throw those out.",
            ),
        },
        tails=HELD_OUT_TAILS,
    )

    def scene(self, rng: Random, words: Words, phrasings: Phrasings, work: float) -> Scene:
        """Draws files of distinct sizes."""
        kind = rng.choice((*QUERIES, "free"))
        folders, ending = words.several(3), rng.choice(_ENDINGS)
        while True:
            places = [*folders, *(rng.choice(folders) for _ in range(rng.randint(3, 6)))]
            sizes = dict(zip(_paths(rng, words, places), rng.sample(range(50, 5_000), len(places)), strict=True))
            totals = [sum(size for path, size in sizes.items() if path.startswith(f"disk/{f}/")) for f in folders]
            largest = sorted(totals)[-2:]
            # Directories have a size of their own, which depends on the file system.
            if largest[1] - largest[0] > 300 and any(path.endswith(ending) for path in sizes):
                break
        limit = rng.choice(sorted(sizes.values())[1:-1]) + 1
        facts = {"kind": kind, "ending": ending, "limit": str(limit)}
        kept = {path: size for path, size in sizes.items() if not path.endswith(f".{ending}")}
        allowed = sum(kept.values()) if kind == "free" else sum(sizes.values())
        files = {path: _filler(size) for path, size in sizes.items()}
        files["quota"] = QUOTA.format(rounds=repetitions(_ROUNDS, work), limit=allowed)
        instruction = phrasings.instruction(rng, kind, **facts)
        if kind == "free":
            expected = {
                "paths": "".join(f"{path}\n" for path in sorted(kept)),
                "sizes": "".join(f"{size} {path}\n" for path, size in kept.items()),
            }
            return Scene(instruction, files, VERIFIER, expected, facts=facts)
        answer = _answer(sizes, facts, dict(zip(folders, totals, strict=True)))
        return Scene(instruction, files, answer=answer, facts=facts)

    def decide(self, scene: Scene, transcript: Sequence[Step]) -> str:
        """Asks what the space goes to; or scans, deletes, scans again."""
        if not listed(transcript):
            return "ls"
        facts = scene.facts
        if query := QUERIES.get(facts["kind"]):
            return ask(transcript, query.format(**facts))
        left = f"find disk -type f -name '*.{facts['ending']}' | sort"
        found = shown(transcript, left, "./quota")
        if found is None:
            return left
        if re.search(rf"\.{facts['ending']}$", found, re.MULTILINE):
            return f"find disk -type f -name '*.{facts['ending']}' -delete"
        return "submit" if shown(transcript, "./quota") else "./quota"


def _paths(rng: Random, words: Words, places: Sequence[str]) -> list[str]:
    return [f"disk/{place}/{words.draw()}.{rng.choice(_ENDINGS)}" for place in places]


def _filler(size: int) -> str:
    """Text of so many bytes."""
    line = "all work and no play " * 3 + "\n"
    return (line * (size // len(line) + 1))[: size - 1] + "\n"


def _answer(sizes: Mapping[str, int], facts: Mapping[str, str], totals: Mapping[str, int]) -> str:
    """The question's answer, without any of the agent's tools."""
    match facts["kind"]:
        case "largest":
            return max(sizes, key=lambda path: sizes[path]).rpartition("/")[2]
        case "folder":
            return max(totals, key=lambda folder: totals[folder])
        case "total":
            return str(sum(size for path, size in sizes.items() if path.endswith(f".{facts['ending']}")))
        case _:
            return str(sum(size > int(facts["limit"]) for size in sizes.values()))
