"""Bring services into an order in which each starts after those it needs."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from obsspec_gym.envs.tasks.families.common import (
    HELD_OUT_LEADS,
    HELD_OUT_TAILS,
    LEADS,
    TAILS,
    shown,
    succeeded,
)
from obsspec_gym.envs.tasks.family import OWN_FILES, Phrasings, Scene, Step, body, listed, repetitions
from obsspec_gym.envs.tasks.words import Words

START = """\
#!/bin/bash
# Starts the services in the order of the file order; stops at the first that needs one not yet started.
[ -f order ] || {{ echo "there is no file order"; exit 1; }}
started=" "
while read -r service; do
  [[ " $(cut -d' ' -f1 needs | paste -sd' ') " == *" $service "* ]] || {{ echo "$service is unknown"; exit 1; }}
  while read -r name needed; do
    [ "$name" = "$service" ] || continue
    for other in $needed; do
      [[ $started == *" $other "* ]] || {{ echo "$service needs $other first"; exit 1; }}
    done
  done < needs
  for _ in $(seq {rounds}); do sha256sum needs > /dev/null; done
  started+="$service "
done < order
[ "$(sort -u order | wc -l)" = {count} ] || {{ echo "some services are missing"; exit 1; }}
echo "{count} services started"
"""

VERIFIER = """\
own order
[ "$(wc -l < order)" = {count} ] && [ "$(sort -u order | wc -l)" = {count} ] || exit 1
while read -r service others; do
  place=$(grep -nx "$service" order | cut -d: -f1)
  [ -n "$place" ] || exit 1
  for other in $others; do [ "$(grep -nx "$other" order | cut -d: -f1)" -lt "$place" ] || exit 1; done
done < "$VERIFIER/needs"
"""

PAIRS = "awk '{for (i = 2; i <= NF; i++) print $i, $1; print $1, $1}' needs | tsort > order"
"""Every need as a pair, and from these an order."""

_ROUNDS = 25


class StartOrder:
    """Four to seven services; the file ``needs`` says what each needs."""

    name = "order"
    phrasings = Phrasings(
        leads=LEADS,
        cores={
            "new": (
                "write the file order: all services of needs, one a line, each after those it needs.",
                "the file order is missing. Make it from needs so that ./start works.",
                "put the services into the right order (file order) and run ./start.",
                "tsort can tell in which order the services start. Write it to order.",
                "list each service after what it needs in the file order, then run ./start.",
                "make order, one service a line, so that nothing starts before what it needs.",
                "the file needs has lines SERVICE NEEDED... Write a valid start order to order.",
                "create order from needs and start everything with ./start.",
            ),
            "wrong": (
                "./start says {error}. Correct the file order.",
                "the start stops: {error}. Repair order so that every service comes up.",
                "the file order is wrong ({error}). Write it anew from needs.",
                "we get {error}. Bring the services into the right order.",
                "fix the file order: {error}.",
                "services do not come up, {error}. Make ./start work.",
                "./start prints {error}. Sort the services by what they need, in order.",
                "{error}, says ./start. Put order right.",
            ),
        },
        tails=TAILS,
    )
    held_out_phrasings = Phrasings(
        leads=HELD_OUT_LEADS,
        cores={
            "new": (
                "our machines were rebooted and nobody knows which comes up when; needs has all facts, order is yours.",
                "could you work out a boot sequence? It should be in order, one per line.",
                "I want everything up, dependencies ahead, and the sequence noted in order.",
            ),
            "wrong": (
                "our machines were rebooted and hang with {error}; the boot sequence is to blame.",
                "could you work out why the boot ends in {error}, and mend the sequence?",
                "I want everything up again, not {error}.",
            ),
        },
        tails=HELD_OUT_TAILS,
    )

    def scene(self, rng: Random, words: Words, phrasings: Phrasings, work: float) -> Scene:
        """Draws services, what they need, and an order that is missing or wrong."""
        kind = rng.choice(("new", "wrong"))
        valid = words.several(rng.randint(4, 7))
        needs = {
            service: sorted(rng.sample(valid[:place], min(place, rng.choice((1, 1, 2)))))
            for place, service in enumerate(valid)
        }
        order = list(valid)
        while not (error := _error(order, needs)):
            rng.shuffle(order)
        lines = [" ".join([service, *needs[service]]) + "\n" for service in sorted(valid)]
        files = {"needs": "".join(lines), "start": START.format(rounds=repetitions(_ROUNDS, work), count=len(valid))}
        if kind == "wrong":
            files["order"] = "".join(f"{service}\n" for service in order)
        verifier = OWN_FILES + VERIFIER.format(count=len(valid))
        return Scene(phrasings.instruction(rng, kind, error=error), files, verifier, {"needs": files["needs"]})

    def decide(self, scene: Scene, transcript: Sequence[Step]) -> str:
        """Reads what is needed, sorts, starts, hands in."""
        if not listed(transcript):
            return "ls"
        if shown(transcript, "cat needs", PAIRS, "./start") is None:
            return "cat needs"
        if not succeeded(transcript, PAIRS, "./start"):
            return PAIRS
        result = shown(transcript, "./start")
        if result is None:
            return "./start"
        return "submit" if "started" in body(result) else PAIRS


def _error(order: Sequence[str], needs: dict[str, list[str]]) -> str:
    """What the start says about an order; empty where it is right."""
    for place, service in enumerate(order):
        for other in needs[service]:
            if other not in order[:place]:
                return f"{service} needs {other} first"
    return ""
