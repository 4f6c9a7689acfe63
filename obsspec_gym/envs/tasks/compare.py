"""How an answer is compared with what was expected."""

from __future__ import annotations

import enum


class Comparison(enum.Enum):
    """What two texts have to have in common."""

    INTEGER = "integer"
    """Both are the same integer, surrounding blanks aside."""
    STRING = "string"
    """They are equal, surrounding blanks aside."""
    EXACT = "exact"
    """They are equal."""
    SIZE = "size"
    """They are the same number of bytes: ``3MB`` is ``3072 KB``; numbers without a unit are compared as they are."""
    REGEX = "regex"
    """The expected one is a regular expression that matches the whole answer, surrounding blanks aside."""


COMPARE = r'''
"""compare.py COMPARISON FILE: whether $ANSWER agrees with what the file expects, by exit status."""

import os
import re
import sys


def integer(text):
    return int(text.strip()) if re.fullmatch(r"\s*[+-]?[0-9]+\s*", text) else None


def size(text):
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([kmgtp]?)(i?b|bytes?)?\s*", text, re.IGNORECASE)
    if found is None:
        return None
    unit = "b" if found[3] and not found[2] else found[2].lower()
    return float(found[1]), unit


def same_size(one, other):
    if one is None or other is None:
        return False
    if not one[1] or not other[1]:
        return one[0] == other[0]
    scale = {unit: 1024.0**power for power, unit in enumerate("bkmgtp")}
    return abs(one[0] * scale[one[1]] - other[0] * scale[other[1]]) < 1


READERS = {"integer": integer, "size": size}
COMPARISONS = {
    "integer": lambda got, want: integer(want) is not None and integer(got) == integer(want),
    "string": lambda got, want: got.strip() == want.strip() != "",
    "exact": lambda got, want: got == want != "",
    "size": lambda got, want: same_size(size(got), size(want)),
    "regex": lambda got, want: got.strip() != "" and re.fullmatch(want.strip(), got.strip(), re.DOTALL) is not None,
}


def complaint(name, got, want):
    """What is wrong with an answer, in one line."""
    read = READERS.get(name, str)
    if not want.strip():
        return "nothing is expected: no answer can be right"
    if read(want) is None:
        return f"what was expected is not of kind {name}: {want[:200]!r}"
    if read(got) is None:
        return f"the answer is not of kind {name}: {got[:200]!r}"
    return f"the answer is another: {got[:200]!r} is not {want[:200]!r}"


if __name__ == "__main__":
    name, path = sys.argv[1:]
    with open(path, encoding="utf-8", errors="replace") as file:
        expected = file.read()
    answer = os.environ.get("ANSWER", "")
    if not COMPARISONS[name](answer, expected):
        sys.exit(complaint(name, answer, expected))
'''
"""A program for the sandbox; it needs nothing but Python's own library."""
