"""Give files the permissions that a policy wants, or tell who may do what."""

from __future__ import annotations

import re
from collections.abc import Sequence
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

AUDIT = """\
#!/bin/bash
# Compares every path with the policy (and checksums it, as auditors do); stops at the first that is wrong.
count=0
while read -r mode path; do
  [ -f "$path" ] || {{ echo "$path is missing"; exit 1; }}
  for _ in $(seq {rounds}); do sha256sum "$path" > /dev/null; done
  got=$(stat -c %a "$path")
  [ "$got" = "$mode" ] || {{ echo "$path has mode $got, wants $mode"; exit 1; }}
  count=$((count + 1))
done < policy
echo "$count paths in order"
"""

VERIFIER = (
    OWN_FILES
    + """\
while read -r mode path; do
  own "$path"
  [ "$(stat -c %a "$path")" = "$mode" ] || exit 1
  cmp -s "$path" "$VERIFIER/$path" || exit 1
done < "$VERIFIER/policy"
"""
)

QUERIES = {
    "writable": "find {place} -type f -perm -o=w | wc -l",
    "runnable": "find {place} -type f -perm -u=x | wc -l",
}
"""What answers each kind of question."""

_PLACES = {"bin": ("755", "700", "750"), "keys": ("600", "400"), "public": ("644", "664")}
_ROUNDS = 15
_WRONG = re.compile(r"^(\S+) has mode \d+, wants (\d+)$", re.MULTILINE)


class Permissions:
    """Files in three directories, a policy of their modes, and an audit that compares."""

    name = "permissions"
    phrasings = Phrasings(
        leads=LEADS,
        cores={
            "reported": (
                "./audit says {error}. Set the permissions right.",
                "the audit reports {error}. Fix it.",
                "we get {error}. Correct the modes until ./audit passes.",
                "{error} is what ./audit prints. Make it pass.",
                "change the mode: {error}.",
                "audit fails with {error}. Please repair.",
                "fix this permission problem: {error}.",
                "I see {error}. Use chmod and run the audit again.",
            ),
            "silent": (
                "make ./audit pass.",
                "./audit fails. Set the permissions that it wants.",
                "some files have wrong permissions. Run ./audit and fix them.",
                "correct the modes that the audit complains about.",
                "use chmod until ./audit is content.",
                "the permissions are not those of the policy. Repair them.",
                "run the audit and repair what it finds.",
                "please get these files through ./audit.",
            ),
            "writable": (
                "how many files in {place} can everybody write?",
                "count the world-writable files in {place}.",
                "submit the number of files in {place} that others may write.",
                "find out how many files of {place} are writable by others.",
                "the number of world-writable files under {place} is wanted.",
                "how many files under {place} have write permission for others?",
                "report how many files in {place} anyone may change.",
                "in {place}, how many files are open to writes by all?",
            ),
            "runnable": (
                "how many files in {place} can their owner execute?",
                "count the executable files in {place}.",
                "submit the number of files in {place} that the owner may run.",
                "find out how many files of {place} are executable.",
                "the number of executable files under {place} is wanted.",
                "how many files under {place} have execute permission for the owner?",
                "report how many files in {place} are executable.",
                "in {place}, how many files have the x bit of the owner?",
            ),
        },
        tails=TAILS,
    )
    held_out_phrasings = Phrasings(
        leads=HELD_OUT_LEADS,
        cores={
            "reported": (
                "security wrote to us: {error}. Put it right.",
                "could you get rid of {error}?",
                "our release is blocked, {error}.",
                "what to do about {error}? Solve it.",
            ),
            "silent": (
                "security is unhappy with our file rights, put them right.",
                "could you bring file rights into line with the policy?",
                "our release is blocked by file rights, the audit knows more.",
                "access rights here need your attention before tonight.",
            ),
            "writable": (
                "security asks which amount of {place} is unprotected against writing by strangers; a number, please.",
                "strangers could overwrite some files in {place}: tell me the amount.",
                "I need to know the amount of files below {place} with o+w.",
            ),
            "runnable": (
                "security asks which amount of {place} could be started by its owner; a number, please.",
                "owners could start some files in {place}: tell me the amount.",
                "I need to know the amount of files below {place} with u+x.",
            ),
        },
        tails=HELD_OUT_TAILS,
    )

    def scene(self, rng: Random, words: Words, phrasings: Phrasings, work: float) -> Scene:
        """Draws files, what their modes should be, and what they are."""
        kind = rng.choice(("reported", "reported", "silent", "silent", "writable", "runnable"))
        wanted = {}
        for place, choices in _PLACES.items():
            for name in words.several(rng.randint(2, 3)):
                wanted[f"{place}/{name}"] = rng.choice(choices)
        modes = dict(wanted)
        faulty = sorted(rng.sample(sorted(wanted), rng.choice((1, 1, 2, 3))))
        for path in faulty:
            modes[path] = rng.choice([mode for mode in ("777", "666", "640", "444") if mode != wanted[path]])
        contents = {path: f"{words.draw()} {rng.randint(10, 99)}\n" for path in wanted}
        policy = "".join(f"{mode} {path}\n" for path, mode in wanted.items())
        files = {**contents, "policy": policy, "audit": AUDIT.format(rounds=repetitions(_ROUNDS, work))}
        setup = "".join(f"chmod {mode} {path}\n" for path, mode in modes.items())
        first = next(path for path in wanted if path in faulty)
        error = f"{first} has mode {modes[first]}, wants {wanted[first]}"
        facts = {"kind": kind, "place": rng.choice(sorted(_PLACES)), "error": error}
        instruction = phrasings.instruction(rng, kind, **facts)
        if kind in ("reported", "silent"):
            return Scene(instruction, files, VERIFIER, {**contents, "policy": policy}, facts=facts, setup=setup)
        bit = 0o002 if kind == "writable" else 0o100
        inside = [int(mode, 8) & bit for path, mode in modes.items() if path.startswith(facts["place"] + "/")]
        answer = str(sum(map(bool, inside)))
        return Scene(instruction, files, answer=answer, facts=facts, setup=setup)

    def decide(self, scene: Scene, transcript: Sequence[Step]) -> str:
        """Audits, changes the mode that is wrong, audits again; or asks ``find``."""
        if not listed(transcript):
            return "ls"
        if query := QUERIES.get(scene.facts["kind"]):
            return ask(transcript, query.format(**scene.facts))
        result = shown(transcript, "./audit")
        if result is None:
            return "./audit"
        if wrong := _WRONG.search(result):
            return f"chmod {wrong[2]} {wrong[1]}"
        return "submit"
