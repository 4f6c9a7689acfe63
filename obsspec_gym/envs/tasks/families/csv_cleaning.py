"""Clean a table with a line of awk, load what is left, hand in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from obsspec_gym.envs.tasks.families.common import (
    HELD_OUT_LEADS,
    HELD_OUT_TAILS,
    LEADS,
    TAILS,
    read,
    shown,
    succeeded,
)
from obsspec_gym.envs.tasks.family import OWN_FILES, Phrasings, Scene, Step, listed, repetitions
from obsspec_gym.envs.tasks.words import Words

LOAD = """\
#!/bin/bash
# Loads a table row by row, each with a checksum: load FILE.
[ -f "$1" ] || {{ echo "load: there is no $1"; exit 1; }}
count=-1
while IFS= read -r row; do
  for _ in $(seq {rounds}); do sha256sum <<< "$row" > /dev/null; done
  count=$((count + 1))
done < "$1"
echo "$count rows loaded"
"""

VERIFIER = OWN_FILES + 'own clean.csv; cmp -s clean.csv "$VERIFIER/expected"\n'

_ROUNDS = 8


class CsvCleaning:
    """A table with a header; rows, or columns, that do not belong are to be left out of ``clean.csv``."""

    name = "csv"
    phrasings = Phrasings(
        leads=LEADS,
        cores={
            "empty": (
                "write clean.csv: the table without rows that have an empty field. Load it with ./load.",
                "drop every row with a missing value and save the rest as clean.csv, then ./load clean.csv.",
                "some rows have empty fields. Leave them out of clean.csv.",
                "clean the csv file: no empty fields. The result goes to clean.csv.",
                "make clean.csv from the table, without the incomplete rows.",
                "the loader needs clean.csv without empty fields. Produce it and load it.",
                "rows where a field is empty must go. Put the others, with the header, into clean.csv.",
                "remove incomplete rows; the complete ones belong into clean.csv.",
            ),
            "duplicate": (
                "write clean.csv: the table with every row only once. Load it with ./load.",
                "drop repeated rows and save the rest as clean.csv, then ./load clean.csv.",
                "some rows occur twice. Keep the first of each in clean.csv.",
                "clean the csv file: no duplicates. The result goes to clean.csv.",
                "make clean.csv from the table, without repeated rows.",
                "the loader needs clean.csv without duplicates. Produce it and load it.",
                "rows that were there before must go. Put the others, in order, into clean.csv.",
                "remove duplicate rows; the first of each belongs into clean.csv.",
            ),
            "below": (
                "write clean.csv: the table without rows whose {column} is below {limit}. Load it with ./load.",
                "drop every row with {column} under {limit} and save the rest as clean.csv, then ./load clean.csv.",
                "keep the rows with {column} of at least {limit} in clean.csv.",
                "clean the csv file: {column} must be {limit} or more. The result goes to clean.csv.",
                "make clean.csv from the table, without rows where {column} is less than {limit}.",
                "the loader needs clean.csv with {column} >= {limit} only. Produce it and load it.",
                "rows with a {column} smaller than {limit} must go. Put the others into clean.csv.",
                "remove the rows with {column} < {limit}; the others belong into clean.csv.",
            ),
            "only": (
                "write clean.csv: the rows of the table whose {column} is {value}. Load it with ./load.",
                "keep the rows with {column} {value}, save them as clean.csv, then ./load clean.csv.",
                "only rows with {value} as {column} belong into clean.csv.",
                "filter the csv file: {column} must be {value}. The result goes to clean.csv.",
                "make clean.csv from the table, with the rows where {column} equals {value}.",
                "the loader needs clean.csv with {column} = {value} only. Produce it and load it.",
                "rows with another {column} than {value} must go. Put the header and the others into clean.csv.",
                "remove the rows whose {column} is not {value}; the others belong into clean.csv.",
            ),
            "columns": (
                "write clean.csv: only the columns {column} and {other} of the table, in this order.",
                "cut the table down to {column} and {other} and save it as clean.csv, then ./load clean.csv.",
                "we need {column} and {other} only, in clean.csv.",
                "the csv file has too many columns. Put {column} and {other} into clean.csv.",
                "make clean.csv from the table, with {column} first and {other} second and nothing else.",
                "the loader needs clean.csv with the columns {column},{other}. Produce it and load it.",
                "columns other than {column} and {other} must go; the result is clean.csv.",
                "extract {column} and then {other} of every row into clean.csv.",
            ),
        },
        tails=TAILS,
    )
    held_out_phrasings = Phrasings(
        leads=HELD_OUT_LEADS,
        cores={
            "empty": (
                "our import chokes on blanks; give us clean.csv with full records only.",
                "records lacking a value are useless to us, the useful ones should be in clean.csv.",
                "can you filter out records with gaps? We expect clean.csv.",
                "save all records that are complete, header included, under the name clean.csv.",
            ),
            "duplicate": (
                "our import chokes on copies; give us clean.csv with unique records.",
                "several records were exported more than once, clean.csv should have them once.",
                "can you filter out copies of records? We expect clean.csv.",
                "save each different record one time, header included, under the name clean.csv.",
            ),
            "below": (
                "our import chokes on a {column} lower than {limit}; give us clean.csv without such records.",
                "records need a {column} that reaches {limit}, those that do should be in clean.csv.",
                "can you filter by {column}, from {limit} upwards? We expect clean.csv.",
                "save all records whose {column} is not lower than {limit} under the name clean.csv.",
            ),
            "only": (
                "our import takes {value} as {column}; give us clean.csv with such records.",
                "we care about records that say {value} under {column}, they should be in clean.csv.",
                "can you filter by {column}, for {value}? We expect clean.csv.",
                "save all records having {value} for {column}, header included, under the name clean.csv.",
            ),
            "columns": (
                "our import takes two fields, {column} then {other}; give us such a clean.csv.",
                "we care about the fields {column} and {other}, in that sequence, so build clean.csv.",
                "can you project the data to {column}, {other}? We expect clean.csv.",
                "save the two fields {column} and {other} under the name clean.csv.",
            ),
        },
        tails=HELD_OUT_TAILS,
    )

    def scene(self, rng: Random, words: Words, phrasings: Phrasings, work: float) -> Scene:
        """Draws a table and what is wrong with it."""
        name, *columns = words.several(4)
        number = rng.randrange(3)
        values = words.several(4)
        rows = [
            [str(i), *(str(rng.randint(1, 99)) if at == number else rng.choice(values) for at in range(3))]
            for i in range(1, rng.randint(8, 13))
        ]
        kind = rng.choice(("empty", "duplicate", "below", "only", "columns"))
        facts = {"kind": kind, "column": columns[number], "limit": str(rng.randint(25, 60))}
        if kind == "empty":
            for row in rng.sample(rows, rng.randint(1, 3)):
                row[rng.randint(1, 3)] = ""
        elif kind == "duplicate":
            for row in rng.sample(rows, rng.randint(1, 3)):
                rows.insert(rng.randint(rows.index(row) + 1, len(rows)), row)
        elif kind == "only":
            at = rng.choice([at for at in range(3) if at != number])
            facts |= {"column": columns[at], "value": rng.choice(rows)[at + 1]}
        elif kind == "columns":
            facts["column"], facts["other"] = rng.sample(columns, 2)
        table = [["id", *columns], *rows]
        files = {f"{name}.csv": _text(table), "load": LOAD.format(rounds=repetitions(_ROUNDS, work))}
        expected = {"expected": _text(_cleaned(table, facts))}
        return Scene(phrasings.instruction(rng, kind, **facts), files, VERIFIER, expected, facts=facts)

    def decide(self, scene: Scene, transcript: Sequence[Step]) -> str:
        """Reads the header, cleans, loads, hands in."""
        names = listed(transcript)
        if not names:
            return "ls"
        file = next((name for name in names if name.endswith(".csv") and name != "clean.csv"), "table.csv")
        header = read(transcript, f"head -n 3 {file}")
        if header is None:
            return f"head -n 3 {file}"
        clean = _command(header.split("\n")[0].split(","), file, scene.facts)
        if not succeeded(transcript, clean, "./load clean.csv"):
            return clean
        return "submit" if shown(transcript, "./load clean.csv") else "./load clean.csv"


def _text(table: Sequence[Sequence[str]]) -> str:
    return "".join(",".join(row) + "\n" for row in table)


def _cleaned(table: list[list[str]], facts: Mapping[str, str]) -> list[list[str]]:
    """What has to be left of the table, worked out without any of the agent's tools."""
    header, *rows = table
    at = header.index(facts["column"])
    match facts["kind"]:
        case "empty":
            rows = [row for row in rows if all(row)]
        case "duplicate":
            rows = [row for i, row in enumerate(rows) if row not in rows[:i]]
        case "below":
            rows = [row for row in rows if int(row[at]) >= int(facts["limit"])]
        case "only":
            rows = [row for row in rows if row[at] == facts["value"]]
        case _:
            return [[row[at], row[header.index(facts["other"])]] for row in table]
    return [header, *rows]


def _command(header: Sequence[str], file: str, facts: Mapping[str, str]) -> str:
    """The expert's one line."""

    def field(column: str) -> str:
        return f"${header.index(column) + 1}" if column in header else "$1"

    match facts["kind"]:
        case "empty":
            return f"grep -vE ',(,|$)' {file} > clean.csv"
        case "duplicate":
            return f"awk '!seen[$0]++' {file} > clean.csv"
        case "below":
            return f"awk -F, 'NR == 1 || {field(facts['column'])} >= {facts['limit']}' {file} > clean.csv"
        case "only":
            return f"awk -F, 'NR == 1 || {field(facts['column'])} == \"{facts['value']}\"' {file} > clean.csv"
        case _:
            return f"awk -F, '{{print {field(facts['column'])}\",\"{field(facts['other'])}}}' {file} > clean.csv"
