"""Edit an INI file: the same key may stand in several sections."""

from __future__ import annotations

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

RELOAD = """\
#!/bin/bash
# Reloads the service: reads every section and setting of the .ini file, with a checksum each.
sections=0 settings=0
while IFS= read -r line; do
  for _ in $(seq {rounds}); do sha256sum <<< "$line" > /dev/null; done
  case $line in
    "["*"]") sections=$((sections + 1)) ;;
    *=*) settings=$((settings + 1)) ;;
    "") ;;
    *) echo "cannot read: $line"; exit 1 ;;
  esac
done < <(cat *.ini)
echo "$settings settings in $sections sections"
"""

VERIFIER = (
    OWN_FILES
    + """\
file=$(cat "$VERIFIER/name")
own "$file"
cmp -s <(grep . "$file") "$VERIFIER/expected"
"""
)

COMMANDS: Mapping[str, str] = {
    "set": "sed -i '/^\\[{section}\\]/,/^\\[/s/^{key}=.*/{key}={value}/' {file}",
    "add": "sed -i '/^\\[{section}\\]/a {key}={value}' {file}",
    "remove": "sed -i '/^\\[{section}\\]/,/^\\[/{{/^{key}=/d}}' {file}",
    "rename": "sed -i 's/^\\[{section}\\]/[{value}]/' {file}",
}
"""What the expert does about each kind of request."""

_ROUNDS = 8


class Settings:
    """An INI file of two or three sections that share the names of their settings."""

    name = "ini"
    phrasings = Phrasings(
        leads=LEADS,
        cores={
            "set": (
                "set {key} to {value} in section {section} of {file}.",
                "in {file}, {key} of [{section}] must be {value}.",
                "change {key} in [{section}] to {value}, in {file}.",
                "{file}: [{section}] {key}={value}, please.",
                "the setting {key} of section {section} in {file} should have the value {value}.",
                "edit {file}: section {section}, {key}={value}. The other sections stay.",
                "give {key} in section [{section}] of {file} the value {value}.",
                "update {file} so that [{section}] has {key}={value}, then ./reload.",
            ),
            "add": (
                "add {key}={value} to section {section} of {file}, as its first setting.",
                "in {file}, put {key}={value} right below [{section}].",
                "insert {key}={value} at the top of [{section}], in {file}.",
                "{file}: a new first line {key}={value} in [{section}], please.",
                "section {section} in {file} should begin with {key}={value}.",
                "edit {file}: below the line [{section}] add {key}={value}.",
                "give section [{section}] of {file} a new first setting {key}={value}.",
                "update {file} so that [{section}] starts with {key}={value}, then ./reload.",
            ),
            "remove": (
                "remove {key} from section {section} of {file}.",
                "in {file}, [{section}] must not have {key}.",
                "delete {key} in [{section}], in {file}.",
                "{file}: no {key} in [{section}], please.",
                "the setting {key} of section {section} in {file} should go.",
                "edit {file}: section {section} without {key}. The other sections stay.",
                "take {key} out of section [{section}] of {file}.",
                "update {file} so that [{section}] has no {key}, then ./reload.",
            ),
            "rename": (
                "rename section {section} of {file} to {value}.",
                "in {file}, [{section}] must be called [{value}].",
                "change the section name {section} to {value}, in {file}.",
                "{file}: [{value}] for [{section}], please.",
                "the section {section} in {file} should have the name {value}.",
                "edit {file}: the header [{section}] becomes [{value}].",
                "give section [{section}] of {file} the name {value}.",
                "update {file} so that [{section}] is [{value}], then ./reload.",
            ),
        },
        tails=TAILS,
    )
    held_out_phrasings = Phrasings(
        leads=HELD_OUT_LEADS,
        cores={
            "set": (
                "our {section} runs with a wrong {key}; according to the manual {file} needs {value} there.",
                "could you switch {key} for {section} over to {value}? It is in {file}.",
                "I want {value} as the {key} of {section}, see {file}.",
            ),
            "add": (
                "our {section} lacks {key}; according to the manual {file} needs {value} for it, ahead of the rest.",
                "could you introduce {key} for {section}, with {value}, on top? It is in {file}.",
                "I want a {key} with {value} heading {section}, see {file}.",
            ),
            "remove": (
                "our {section} no longer takes a {key}; according to the manual {file} must do without.",
                "could you drop {key} for {section}? It is in {file}.",
                "I want {section} to fall back on its own {key}, so {file} must not mention one there.",
            ),
            "rename": (
                "our {section} is known as {value} now; according to the manual {file} must say so.",
                "could you switch the header {section} over to {value}? It is in {file}.",
                "I want {value} where we had {section}, see {file}.",
            ),
        },
        tails=HELD_OUT_TAILS,
    )

    def scene(self, rng: Random, words: Words, phrasings: Phrasings, work: float) -> Scene:
        """Draws a file and what is to be changed in it."""
        kind = rng.choice(sorted(COMMANDS))
        file = f"{words.draw()}.ini"
        names, keys = words.several(rng.choice((2, 3))), words.several(3)
        sections = {name: {key: _value(rng, words) for key in rng.sample(keys, rng.choice((2, 3)))} for name in names}
        section = rng.choice(names)
        key = rng.choice(sorted(sections[section]))
        facts = {"kind": kind, "file": file, "section": section, "key": key, "value": words.draw()}
        if kind == "add":
            facts["key"] = words.draw()
        files = {file: _text(sections, "\n"), "reload": RELOAD.format(rounds=repetitions(_ROUNDS, work))}
        expected = {"expected": _text(_edited(sections, facts)), "name": f"{file}\n"}
        return Scene(phrasings.instruction(rng, kind, **facts), files, VERIFIER, expected, facts=facts)

    def decide(self, scene: Scene, transcript: Sequence[Step]) -> str:
        """Reads the file, edits it, reloads, hands in."""
        if not listed(transcript):
            return "ls"
        file = scene.facts["file"]
        content = shown(transcript, f"cat {file}", "./reload")
        if content is None:
            return f"cat {file}"
        if not _done(body(content), scene.facts):
            return COMMANDS[scene.facts["kind"]].format(**scene.facts)
        return "submit" if shown(transcript, "./reload") else "./reload"


def _done(text: str, facts: Mapping[str, str]) -> bool:
    """Whether a file is as it was asked for, as far as the one section goes."""
    _, _, rest = f"\n{text}\n".partition(f"\n[{facts['section']}]\n")
    lines = rest.partition("\n[")[0].split("\n")
    setting = f"{facts['key']}={facts['value']}"
    match facts["kind"]:
        case "set" | "add":
            return setting in lines
        case "remove":
            return not any(line.startswith(f"{facts['key']}=") for line in lines)
        case _:
            return not rest


def _value(rng: Random, words: Words) -> str:
    return str(rng.randint(10, 99)) if rng.random() < 0.5 else words.draw()


def _text(sections: Mapping[str, Mapping[str, str]], between: str = "") -> str:
    """The file, with ``between`` after each section."""
    return between.join(
        f"[{name}]\n" + "".join(f"{key}={value}\n" for key, value in settings.items())
        for name, settings in sections.items()
    )


def _edited(sections: Mapping[str, Mapping[str, str]], facts: Mapping[str, str]) -> dict[str, Mapping[str, str]]:
    """What the sections should be, worked out without any of the agent's tools."""
    section, key, value = facts["section"], facts["key"], facts["value"]
    edited: dict[str, Mapping[str, str]] = {}
    for name, settings in sections.items():
        if name != section:
            edited[name] = settings
        elif facts["kind"] == "rename":
            edited[value] = settings
        elif facts["kind"] == "remove":
            edited[name] = {other: text for other, text in settings.items() if other != key}
        elif facts["kind"] == "add":
            edited[name] = {key: value, **settings}
        else:
            edited[name] = {**settings, key: value}
    return edited
