"""Replace a name, a version or an address in many files, and nothing that only looks like it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from obsspec_gym.envs.tasks.families.common import HELD_OUT_LEADS, HELD_OUT_TAILS, LEADS, TAILS, shown
from obsspec_gym.envs.tasks.family import OWN_FILES, Phrasings, Scene, Step, body, listed, repetitions
from obsspec_gym.envs.tasks.words import Words

LINT = """\
#!/bin/bash
# Reads every file under src/ line by line.
lines=0 files=0
while IFS= read -r path; do
  while IFS= read -r line; do
    for _ in $(seq {rounds}); do cksum <<< "$line" > /dev/null; done
    lines=$((lines + 1))
  done < "$path"
  files=$((files + 1))
done < <(find src -type f | sort)
echo "$lines lines in $files files read"
"""

VERIFIER = (
    OWN_FILES
    + """\
[ "$(find src -type f | sort)" = "$(cat "$VERIFIER/paths")" ] || exit 1
while IFS= read -r path; do
  own "$path"
  cmp -s "$path" "$VERIFIER/$path" || exit 1
done < "$VERIFIER/paths"
"""
)

_ROUNDS = 3


class Substitution:
    """A tree ``src`` of three to six files in two directories."""

    name = "replace"
    phrasings = Phrasings(
        leads=LEADS,
        cores={
            "word": (
                "rename {old} to {new} in all files of src. Longer names that contain {old} stay.",
                "in src, the word {old} must become {new} everywhere, whole words only.",
                "replace the word {old} by {new} in every file under src, but not inside other words.",
                "the function {old} is called {new} now. Update src; names like {old}s are others.",
                "change {old} to {new} throughout src, where it stands alone.",
                "everywhere in src: {new} instead of {old}. Do not touch words that only begin with it.",
                "src still says {old} in places. Make that {new}, for the whole word.",
                "substitute {new} for {old} in src, whole words.",
            ),
            "version": (
                "replace version {old} by {new} in all files of src. Other numbers stay.",
                "in src, {old} must become {new} everywhere. The dot is a dot.",
                "bump {old} to {new} in every file under src.",
                "the version is {new} now. Update {old} in src and nothing else.",
                "change the version from {old} to {new} throughout src.",
                "everywhere in src: {new} instead of {old}. Do not touch numbers that only look similar.",
                "src still says {old} in places. Make that {new}.",
                "substitute {new} for {old} in src; careful with the dot.",
            ),
        },
        tails=TAILS,
    )
    held_out_phrasings = Phrasings(
        leads=HELD_OUT_LEADS,
        cores={
            "word": (
                "we agreed to say {new} where our code says {old}; src has not heard of it yet. Compounds are fine.",
                "could you bring src up to date? {old} has the name {new} since last week (not its compounds).",
                "I want to read {new}, never again {old} on its own, anywhere below src.",
            ),
            "version": (
                "we ship {new}; src has not heard of it yet and believes in {old}. Similar digits are something else.",
                "could you bring src up to date? It is at {old}, we are at {new}.",
                "I want to read {new}, never again {old}, anywhere below src.",
            ),
        },
        tails=HELD_OUT_TAILS,
    )

    def scene(self, rng: Random, words: Words, phrasings: Phrasings, work: float) -> Scene:
        """Draws files in which the old text stands, and others of its look."""
        kind = rng.choice(("word", "version"))
        if kind == "word":
            old, new = words.several(2)
            alike = (f"{old}s", f"re{old}", f"{old}_{new}")
        else:
            major, minor = rng.randint(1, 8), rng.randint(0, 8)
            old, new = f"{major}.{minor}", f"{major}.{minor + 1}"
            alike = (f"{major}0{minor}", f"{major}-{minor}", f"{major}x{minor}")
        places = words.several(2)
        paths = sorted(f"src/{rng.choice(places)}/{name}.txt" for name in words.several(rng.randint(3, 6)))
        before, after = {}, {}
        with_old = set(rng.sample(paths, rng.randint(2, len(paths))))
        for path in paths:
            texts = [alike[rng.randrange(3)], words.draw(), words.draw()]
            texts += ["@"] * rng.randint(1, 2) if path in with_old else []
            rng.shuffle(texts)
            lines = [f"{words.draw()} {text} {rng.randint(10, 99)}\n" for text in texts]
            before[path], after[path] = ("".join(lines).replace("@", name) for name in (old, new))
        facts = {"kind": kind, "old": old, "new": new}
        files = {**before, "lint": LINT.format(rounds=repetitions(_ROUNDS, work))}
        expected = {**after, "paths": "".join(f"{path}\n" for path in paths)}
        return Scene(phrasings.instruction(rng, kind, **facts), files, VERIFIER, expected, facts=facts)

    def decide(self, scene: Scene, transcript: Sequence[Step]) -> str:
        """Finds the files, replaces in these, looks again, reads all of them, hands in."""
        if not listed(transcript):
            return "ls"
        pattern = _pattern(scene.facts)
        search = f"grep -rl '{pattern}' src | sort"
        found = shown(transcript, search, "./lint")
        if found is None:
            return search
        if paths := body(found).split():
            return f"sed -i 's/{pattern}/{scene.facts['new']}/g' {' '.join(paths)}"
        return "submit" if shown(transcript, "./lint") else "./lint"


def _pattern(facts: Mapping[str, str]) -> str:
    """The old text as a regular expression, for the whole of a word."""
    escaped = facts["old"].replace(".", "\\.")
    return f"\\b{escaped}\\b"
