"""Read and edit a table of scheduled jobs, with a simulator that plays a day of it."""

from __future__ import annotations

import re
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

SIMULATE = """\
#!/bin/bash
# Plays one day of the crontab for one job: simulate JOB. Minute and hour are a number, * or */STEP.
fits() {{ [ "$1" = '*' ] || [ "$1" = "$2" ] || [[ $1 == '*/'* && $(($2 % ${{1#\\*/}})) -eq 0 ]]; }}
set -f
runs=0 first=
while read -r minute hour _ _ _ job; do
  [ "$job" = "$1" ] || continue
  for ((h = 0; h < 24; h++)); do
    fits "$hour" $h || continue
    for _ in $(seq {rounds}); do cksum <<< "$h" > /dev/null; done
    for ((m = 0; m < 60; m++)); do
      fits "$minute" $m || continue
      runs=$((runs + 1))
      [ "$first" ] || first=$(printf '%02d.%02d' $h $m)
    done
  done
done < crontab
[ $runs -gt 0 ] || {{ echo "$1 never runs"; exit 1; }}
echo "$1 runs $runs times, first at $first"
"""

VERIFIER = (
    OWN_FILES
    + """\
own crontab
cmp -s <(grep . crontab | tr -s ' ') "$VERIFIER/expected"
"""
)

COMMANDS: Mapping[str, str] = {
    "move": "sed -i 's/^[^ ]* [^ ]* \\(.* {job}\\)$/{minute} {hour} \\1/' crontab",
    "stop": "sed -i '/ {job}$/d' crontab",
    "often": "sed -i 's/^[^ ]* [^ ]* \\(.* {job}\\)$/*\\/{step} * \\1/' crontab",
}
"""What the expert does about each kind of request."""

_ROUNDS = 8
_RUNS = re.compile(r"^\S+ runs (\d+) times, first at (\S+)$", re.MULTILINE)


class Schedule:
    """A crontab of three to five jobs."""

    name = "cron"
    phrasings = Phrasings(
        leads=LEADS,
        cores={
            "count": (
                "how many times a day does {job} run?",
                "submit the number of runs of {job} in a day.",
                "use ./simulate to find out how often {job} runs.",
                "the number of daily runs of {job} is wanted.",
                "how often does the crontab start {job} in one day?",
                "count the runs of {job} in a day of this crontab.",
                "report how many times {job} is started each day.",
                "{job} runs how many times a day?",
            ),
            "first": (
                "at what time does {job} run first in a day? Submit it as HH.MM.",
                "submit the time (HH.MM) of the first run of {job}.",
                "use ./simulate to find out when {job} runs first.",
                "the time of the first daily run of {job} is wanted, like 04.30.",
                "when does the crontab start {job} for the first time in a day?",
                "find the first run of {job} in a day of this crontab, as HH.MM.",
                "report at which time {job} is started first each day (HH.MM).",
                "{job} runs first at which time of the day?",
            ),
            "move": (
                "let {job} run at hour {hour}, minute {minute}, every day.",
                "in the crontab, {job} must have minute {minute} and hour {hour}.",
                "move {job} to minute {minute} of hour {hour}.",
                "change the crontab: {job} once a day, hour {hour}, minute {minute}.",
                "{job} should start daily at minute {minute} past {hour}.",
                "edit crontab so that {job} runs at {hour} h {minute} min. Other jobs stay.",
                "set minute {minute} and hour {hour} for {job} and check with ./simulate {job}.",
                "reschedule {job}: minute {minute}, hour {hour}.",
            ),
            "stop": (
                "{job} must not run any more. Remove its line from the crontab.",
                "delete {job} from the crontab.",
                "take the job {job} out of crontab. Other jobs stay.",
                "stop {job}: no line for it in crontab.",
                "remove {job} from the schedule.",
                "the crontab should have no {job}.",
                "drop the line of {job} and check with ./simulate {job}.",
                "we do not need {job} in the crontab.",
            ),
            "often": (
                "let {job} run every {step} minutes.",
                "in the crontab, {job} must run each {step} minutes, at every hour.",
                "change the crontab: {job} every {step} minutes, day and night.",
                "{job} should start every {step} minutes.",
                "edit crontab so that {job} runs every {step} minutes. Other jobs stay.",
                "set */{step} and any hour for {job} and check with ./simulate {job}.",
                "reschedule {job}: every {step} minutes.",
                "run {job} more regularly, every {step} minutes of every hour.",
            ),
        },
        tails=TAILS,
    )
    held_out_phrasings = Phrasings(
        leads=HELD_OUT_LEADS,
        cores={
            "count": (
                "I wonder what {job} costs us: its executions from midnight to midnight, as a number.",
                "what amount of executions does {job} have per day?",
                "tell me how frequent {job} is, per day.",
            ),
            "first": (
                "I wonder when our day begins with {job}; hours and minutes with a dot, please.",
                "what is the earliest execution of {job}, in the manner of 03.15?",
                "tell me the earliest moment of {job}, hours and minutes with a dot between.",
            ),
            "move": (
                "night shift here: {job} has to take place with hour {hour} and minute {minute}, and at no other.",
                "could you give {job} the slot of hour {hour}, minute {minute}?",
                "I want {job} at a quieter moment, so minute {minute} in hour {hour}.",
            ),
            "stop": (
                "night shift here: {job} has to be gone from what is scheduled.",
                "could you retire {job}? What is scheduled should not list it.",
                "I want no more executions of {job}, not even its entry.",
            ),
            "often": (
                "night shift here: {job} has to take place at intervals of {step} minutes around the clock.",
                "could you give {job} an interval of {step} minutes, around the clock?",
                "I want {job} around the clock with {step} minutes in between.",
            ),
        },
        tails=HELD_OUT_TAILS,
    )

    def scene(self, rng: Random, words: Words, phrasings: Phrasings, work: float) -> Scene:
        """Draws a crontab and what is asked about it, or of it."""
        kind = rng.choice(("count", "first", "move", "stop", "often"))
        jobs = words.several(rng.randint(3, 5))
        times = {job: (_minute(rng), _hour(rng)) for job in jobs}
        job = rng.choice(jobs)
        facts = {"kind": kind, "job": job, "minute": str(rng.randint(1, 59)), "hour": str(rng.randint(1, 22))}
        facts["step"] = rng.choice([step for step in ("5", "6", "12", "20") if times[job] != (f"*/{step}", "*")])
        while times[job] == (facts["minute"], facts["hour"]):
            facts["minute"] = str(rng.randint(1, 59))
        files = {"crontab": _table(times), "simulate": SIMULATE.format(rounds=repetitions(_ROUNDS, work))}
        instruction = phrasings.instruction(rng, kind, **facts)
        if kind in ("count", "first"):
            runs = [(h, m) for h in range(24) for m in range(60) if _fits(times[job][1], h) and _fits(times[job][0], m)]
            answer = str(len(runs)) if kind == "count" else "{:02d}.{:02d}".format(*runs[0])
            return Scene(instruction, files, answer=answer, facts=facts)
        edited = dict(times)
        if kind == "stop":
            del edited[job]
        else:
            edited[job] = (facts["minute"], facts["hour"]) if kind == "move" else (f"*/{facts['step']}", "*")
        return Scene(instruction, files, VERIFIER, {"expected": _table(edited)}, facts=facts)

    def decide(self, scene: Scene, transcript: Sequence[Step]) -> str:
        """Simulates and hands in; or edits, simulates what came of it, hands in."""
        if not listed(transcript):
            return "ls"
        kind, simulate = scene.facts["kind"], f"./simulate {scene.facts['job']}"
        if kind in ("count", "first"):
            found = _RUNS.search(shown(transcript, simulate) or "")
            return f"submit {found[1 if kind == 'count' else 2]}" if found else simulate
        table = shown(transcript, "cat crontab", simulate)
        if table is None:
            return "cat crontab"
        if not _done(body(table), scene.facts):
            return COMMANDS[kind].format(**scene.facts)
        return "submit" if shown(transcript, simulate) else simulate


def _minute(rng: Random) -> str:
    return rng.choice((str(rng.randint(0, 59)), str(rng.randint(0, 59)), "*/10", "*/15", "*/30"))


def _hour(rng: Random) -> str:
    return rng.choice((str(rng.randint(0, 23)), str(rng.randint(0, 23)), "*", "*/2", "*/6", "*/8"))


def _fits(field: str, value: int) -> bool:
    if field.startswith("*/"):
        return value % int(field[2:]) == 0
    return field in ("*", str(value))


def _table(times: Mapping[str, tuple[str, str]]) -> str:
    return "".join(f"{minute} {hour} * * * {job}\n" for job, (minute, hour) in times.items())


def _done(table: str, facts: Mapping[str, str]) -> bool:
    """Whether the line of the job is as it was asked for."""
    lines = [line for line in table.split("\n") if line.endswith(f" {facts['job']}")]
    if facts["kind"] == "stop":
        return not lines
    fields = f"*/{facts['step']} *" if facts["kind"] == "often" else f"{facts['minute']} {facts['hour']}"
    return [f"{fields} * * * {facts['job']}"] == lines
