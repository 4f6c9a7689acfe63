"""Repair config files until their checker is content."""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random

from obsspec_gym.envs.tasks.family import OWN_FILES, Phrasings, Scene, Step, listed, repetitions, since_edit, substitute
from obsspec_gym.envs.tasks.words import Words

CHECK = """\
#!/bin/bash
# Checks every setting against the rules, with a few requests to the service; stops at the first that is wrong.
requests={requests}
stop() {{ echo "$1"; exit 1; }}
while read -r file key kind value; do
  got=$(grep "^$key=" "$file" | head -n 1 | cut -d= -f2)
  [ -n "$got" ] || stop "$file: no $key, default $value"
  case $kind in
    is) [ "$got" = "$value" ] || stop "$file: $key is $got, want $value" ;;
    max) [ "$got" -le "$value" ] 2> /dev/null || stop "$file: $key is $got, limit $value" ;;
  esac
  for request in $(seq "$requests"); do
    bash serve "$file" "$key" "$request" > /dev/null || stop "$file: request $request was refused"
  done
done < rules
files=(*.conf)
echo "${{#files[@]}} files valid"
"""

SERVE = """\
#!/bin/bash
# Answers one request under a config: serve FILE KEY REQUEST.
while IFS='=' read -r key value; do
  [ "$key" = "$2" ] && found=$value
done < "$1"
[ -n "$found" ] && echo "$3 $found"
"""

VERIFIER = (
    OWN_FILES
    + """\
while read -r file key kind value; do
  own "$file"
  [ "$(grep -c "^$key=" "$file")" = 1 ] || exit 1
  got=$(grep "^$key=" "$file" | cut -d= -f2)
  case $kind in
    is) [ "$got" = "$value" ] || exit 1 ;;
    max) [ "$got" -ge 1 ] && [ "$got" -le "$value" ] || exit 1 ;;
  esac
done < "$VERIFIER/rules"
"""
)

_REQUESTS = 14
_WRONG = re.compile(r"^(\w+\.conf): (\w+) is (\w+), (?:want|limit) (\w+)$", re.MULTILINE)
_MISSING = re.compile(r"^(\w+\.conf): no (\w+), default (\w+)$", re.MULTILINE)


class Config:
    """One or two config files; one or two settings are wrong, over their limit, or missing."""

    name = "config"
    phrasings = Phrasings(
        leads=("", "", "", "Hi. ", "Please help: ", "Next task. ", "Hello, ", "Operations here. ", "Urgent: "),
        cores={
            "reported": (
                "./check says {error}. Correct the config.",
                "the checker reports {error}. Fix it.",
                "we get {error}. Repair the config until ./check passes.",
                "{error} is what ./check prints. Make the config valid.",
                "the service does not start: {error}. Correct it.",
                "fix this config error: {error}.",
                "check fails with {error}. Please repair.",
                "I see {error} in the logs. Edit the config and check again.",
            ),
            "silent": (
                "make the config valid.",
                "./check fails. Repair the config until it passes.",
                "something is wrong in a config file. Run ./check and fix it.",
                "correct the settings that the checker complains about.",
                "fix the config so that ./check passes.",
                "the service does not start because of its config. Repair it.",
                "run the checker and repair what it finds.",
                "please get the config through ./check.",
            ),
        },
        tails=("", "", "", " Thanks.", " Then submit.", " Submit when it is valid.", " Change only what is needed."),
    )
    held_out_phrasings = Phrasings(
        leads=("", "Good morning! ", "Ticket for you - ", "Dear agent, "),
        cores={
            "reported": (
                "a customer sent us {error}, have a look and mend it.",
                "validation ends in {error}; put it right.",
                "could you get rid of {error}?",
                "our deployment was rejected because of {error}.",
                "what to do about {error}? Solve it.",
            ),
            "silent": (
                "validation of our settings was rejected, put them right.",
                "there is a mistake in the settings, mend it.",
                "could you bring the settings into line with the rules?",
                "we cannot deploy with settings like these.",
                "the settings need your attention before tonight.",
            ),
        },
        tails=("", " Cheers.", " Hand in once it is done.", " Be quick!"),
    )

    def scene(self, rng: Random, words: Words, phrasings: Phrasings, work: float) -> Scene:
        """Draws configs with one or two faults."""
        names = sorted(words.several(rng.choice((1, 2, 2))))
        settings = [(name, key) for name in names for key in words.several(rng.choice((2, 3)))]
        faulty = rng.sample(settings, 2 if rng.random() < 0.3 else 1)
        rules, lines, errors = [], dict.fromkeys(names, ""), []
        for name, key in settings:
            rule, right, wrong, complaint = _setting(rng, words, key)
            rules.append(f"{name}.conf {rule}\n")
            lines[name] += wrong if (name, key) in faulty else right
            if (name, key) in faulty:
                errors.append(f"{name}.conf: {complaint}")
        files = {f"{name}.conf": text for name, text in lines.items()}
        files |= {"check": CHECK.format(requests=repetitions(_REQUESTS, work)), "serve": SERVE}
        files["rules"] = "".join(rules)
        kind = "reported" if rng.random() < 0.6 else "silent"
        instruction = phrasings.instruction(rng, kind, error=errors[0])
        return Scene(instruction, files, VERIFIER, {"rules": files["rules"]})

    def decide(self, scene: Scene, transcript: Sequence[Step]) -> str:
        """Checks, repairs what the checker names, checks again."""
        if not listed(transcript):
            return "ls"
        result = since_edit(transcript, "./check")
        if result is None:
            return "./check"
        if wrong := _WRONG.search(result):
            file, key, got, want = wrong.groups()
            return substitute(f"{key}={got}", f"{key}={want}", file)
        if missing := _MISSING.search(result):
            file, key, default = missing.groups()
            return f"echo {key}={default} >> {file}"
        return "submit"


def _setting(rng: Random, words: Words, key: str) -> tuple[str, str, str, str]:
    """A setting's rule, its line when right and when wrong, and what the checker says about the wrong one."""
    if rng.random() < 0.5:
        value, other = words.several(2)
        rule, complaint = f"{key} is {value}", f"{key} is {other}, want {value}"
        right, wrong = f"{key}={value}\n", f"{key}={other}\n"
    else:
        limit = rng.randint(20, 90)
        over = rng.randint(limit + 1, 99)
        value = str(limit)
        rule, complaint = f"{key} max {limit}", f"{key} is {over}, limit {limit}"
        right, wrong = f"{key}={rng.randint(10, limit)}\n", f"{key}={over}\n"
    if rng.random() < 0.25:
        return rule, right, "", f"no {key}, default {value}"
    return rule, right, wrong, complaint
