"""Rename or move many files by one rule."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from random import Random

from obsspec_gym.envs.tasks.families.common import (
    HELD_OUT_LEADS,
    HELD_OUT_TAILS,
    LEADS,
    TAILS,
    shown,
)
from obsspec_gym.envs.tasks.family import OWN_FILES, Phrasings, Scene, Step, body, listed, repetitions
from obsspec_gym.envs.tasks.words import Words

INDEX = """\
#!/bin/bash
# Indexes everything under items/: reads each file and lists it.
count=0
while IFS= read -r path; do
  for _ in $(seq {rounds}); do sha256sum "$path" > /dev/null; done
  echo "$path"
  count=$((count + 1))
done < <(find items -type f | sort)
echo "$count items"
"""

VERIFIER = (
    OWN_FILES
    + """\
while read -r _ path; do own "$path"; done < "$VERIFIER/sums"
sha256sum -c --status "$VERIFIER/sums" || exit 1
[ "$(find items -type f | wc -l)" = "$(wc -l < "$VERIFIER/sums")" ]
"""
)

COMMANDS: Mapping[str, str] = {
    "ending": 'for f in items/*.{old}; do mv "$f" "${{f%.{old}}}.{new}"; done',
    "prefix": 'for f in items/*.{old}; do mv "$f" "items/{word}-${{f#items/}}"; done',
    "folders": 'for f in items/*.*; do mkdir -p "items/${{f##*.}}" && mv "$f" "items/${{f##*.}}/"; done',
    "lower": 'for f in items/*; do [ "$f" = "${{f,,}}" ] || mv "$f" "${{f,,}}"; done',
    "dashes": 'for f in items/*_*; do mv "$f" "${{f//_/-}}"; done',
}
"""What the expert does about each kind of rule."""

_ROUNDS = 15
_ENDINGS = ("txt", "md", "csv", "dat", "log")


class Renaming:
    """A directory ``items`` of five to nine files."""

    name = "rename"
    phrasings = Phrasings(
        leads=LEADS,
        cores={
            "ending": (
                "rename all .{old} files in items to .{new}.",
                "in items, every file that ends in .{old} should end in .{new}.",
                "change the ending .{old} to .{new} for the files in items.",
                "the files items/*.{old} must become .{new} files.",
                "give the .{old} files in items the ending .{new} instead.",
                "replace the extension {old} by {new} in items.",
                "rename items/NAME.{old} to items/NAME.{new} for each NAME.",
                "all {old} files of items should be called .{new} from now on.",
            ),
            "prefix": (
                "put {word}- in front of the names of all .{old} files in items.",
                "in items, every .{old} file should be called {word}-NAME.",
                "prefix the .{old} files in items with {word}-.",
                "the files items/*.{old} must begin with {word}-.",
                "add {word}- at the beginning of each .{old} name in items.",
                "give the .{old} files in items the prefix {word}-.",
                "rename items/NAME.{old} to items/{word}-NAME.{old} for each NAME.",
                "the names of all {old} files of items should start with {word}-.",
            ),
            "folders": (
                "move the files in items into folders named after their endings (items/txt and so on).",
                "sort items by ending: items/a.txt goes to items/txt/a.txt.",
                "in items, make a folder for each extension and move the files there.",
                "every file of items belongs into items/ENDING/.",
                "put the files in items into one folder for each ending.",
                "give each extension a folder in items and move its files there.",
                "move items/NAME.END to items/END/NAME.END for each file.",
                "the files of items should lie in folders called like their endings.",
            ),
            "lower": (
                "make all file names in items lower case.",
                "in items, some names have capitals. Rename these files to lower case.",
                "rename the files in items so that their names are lower case.",
                "no capitals in the file names of items, please.",
                "turn the names in items into lower case.",
                "the file names in items must have small letters only.",
                "rename items/NAME to items/name for each file.",
                "all names of items should be lower case from now on.",
            ),
            "dashes": (
                "replace _ by - in all file names in items.",
                "in items, names have underscores. Make them dashes.",
                "rename the files in items so that each _ becomes -.",
                "no underscores in the file names of items, use - instead.",
                "turn every _ in the names in items into -.",
                "the file names in items must have - where they have _.",
                "rename items/A_B to items/A-B for each file.",
                "all names of items should have dashes for underscores from now on.",
            ),
        },
        tails=TAILS,
    )
    held_out_phrasings = Phrasings(
        leads=HELD_OUT_LEADS,
        cores={
            "ending": (
                "our viewer knows {new} but not {old}: call the files under items accordingly.",
                "please swap the suffix {old} for {new} throughout items.",
                "whatever is a {old} in items shall be a {new}.",
            ),
            "prefix": (
                "our viewer wants {word}- ahead of the name of any {old} under items.",
                "please let the name of any {old} in items open with {word}-.",
                "whatever is a {old} in items shall carry {word}- up front.",
            ),
            "folders": (
                "our viewer wants one directory per suffix under items.",
                "please tidy items: a directory per suffix, holding what has it.",
                "whatever is in items shall sit in a directory called as its suffix.",
            ),
            "lower": (
                "our viewer cannot cope with upper case under items, get rid of it.",
                "please tidy items: nobody should have to press shift for a name.",
                "whatever is in items shall be called the same without upper case.",
            ),
            "dashes": (
                "our viewer cannot cope with underscores under items, hyphens are fine.",
                "please tidy items: hyphens in names, underscores nowhere.",
                "whatever is in items shall be called the same with hyphens.",
            ),
        },
        tails=HELD_OUT_TAILS,
    )

    def scene(self, rng: Random, words: Words, phrasings: Phrasings, work: float) -> Scene:
        """Draws files and a rule; not every file falls under it."""
        kind = rng.choice(sorted(COMMANDS))
        old, new, *others = rng.sample(_ENDINGS, 5)
        facts = {"kind": kind, "old": old, "new": new, "word": words.draw()}
        names = []
        for number in range(rng.randint(5, 9)):
            stem = words.draw()
            if kind == "lower" and number % 2 == 0:
                stem = rng.choice((stem.upper(), stem.capitalize()))
            if kind == "dashes" and number % 3 != 2:
                stem = f"{stem}_{rng.randint(1, 99)}"
            names.append(f"{stem}.{old if number < 2 or rng.random() < 0.4 else rng.choice(others)}")
        contents = {name: f"{words.draw()} {number}\n" for number, name in enumerate(names)}
        files = {f"items/{name}": text for name, text in contents.items()}
        files["index"] = INDEX.format(rounds=repetitions(_ROUNDS, work))
        sums = [
            f"{hashlib.sha256(text.encode()).hexdigest()}  items/{_renamed(name, facts)}\n"
            for name, text in contents.items()
        ]
        return Scene(phrasings.instruction(rng, kind, **facts), files, VERIFIER, {"sums": "".join(sums)}, facts=facts)

    def decide(self, scene: Scene, transcript: Sequence[Step]) -> str:
        """Looks at the names, renames, indexes, hands in."""
        if not listed(transcript):
            return "ls"
        looked = shown(transcript, "ls items", "./index")
        if looked is None:
            return "ls items"
        if any(_falls_under(name, scene.facts) for name in body(looked).split("\n")):
            return COMMANDS[scene.facts["kind"]].format(**scene.facts)
        return "submit" if shown(transcript, "./index") else "./index"


def _falls_under(name: str, facts: Mapping[str, str]) -> bool:
    """Whether the rule still has to be applied to a name."""
    match facts["kind"]:
        case "ending":
            return name.endswith(f".{facts['old']}")
        case "prefix":
            return name.endswith(f".{facts['old']}") and not name.startswith(f"{facts['word']}-")
        case "folders":
            return "." in name
        case "lower":
            return name != name.lower()
        case _:
            return "_" in name


def _renamed(name: str, facts: Mapping[str, str]) -> str:
    """Where a file belongs, worked out without any of the agent's tools."""
    stem, _, ending = name.rpartition(".")
    applies = ending == facts["old"]
    match facts["kind"]:
        case "ending":
            return f"{stem}.{facts['new']}" if applies else name
        case "prefix":
            return f"{facts['word']}-{name}" if applies else name
        case "folders":
            return f"{ending}/{name}"
        case "lower":
            return name.lower()
        case _:
            return name.replace("_", "-")
