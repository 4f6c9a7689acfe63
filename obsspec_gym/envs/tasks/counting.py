"""Unpack an archive, then find, count or add something up in the tree of files, and submit the answer."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from random import Random

from obsspec_gym.envs.tasks.family import Phrasings, Scene, Step, body, listed
from obsspec_gym.envs.tasks.words import Words

UNPACK = """\
#!/bin/bash
# Unpacks every .part into out/: each line is a length, a checksum and encoded text.
rm -rf out
mkdir out
count=0
for part in *.part; do
  while read -r length sum text; do
    line=$(base64 -d <<< "$text")
    [ "$(wc -c <<< "$line")" -eq "$length" ] || { echo "$part: wrong length"; exit 1; }
    [ "$(sha256sum <<< "$line" | cut -d' ' -f1)" = "$sum" ] || { echo "$part: wrong checksum"; exit 1; }
    echo "$line"
  done < "$part" > "out/${part%.part}.log"
  count=$((count + 1))
done
echo "$count files unpacked"
"""

QUERIES: Mapping[str, str] = {
    "lines": "cat out/* | grep -c {word}",
    "mention": "grep -l {word} out/* | wc -l",
    "sum": "echo $(($(cut -d' ' -f3 out/* | paste -sd+)))",
    "sum_word": "echo $(($(grep -h {word} out/* | cut -d' ' -f3 | paste -sd+)))",
    "distinct": "cut -d' ' -f2 out/* | sort -u | wc -l",
    "largest": "ls -S out | head -n 1",
    "total": "cat out/* | wc -l",
}
"""What answers each kind of question."""

_LINES_PER_FILE = 20


class Counting:
    """Log files packed in parts; lines are ``WORD WORD NUMBER``."""

    name = "count"
    phrasings = Phrasings(
        leads=("", "", "", "Hi. ", "Please help: ", "Next task. ", "Hello, ", "A question: ", "Urgent: "),
        cores={
            "lines": (
                "how many lines of the logs contain {word}?",
                "count the lines with {word} in all files.",
                "submit the number of lines that have {word} in them.",
                "in how many lines does {word} occur?",
                "find out how many lines say {word}.",
                "count all lines with the word {word}.",
                "the number of {word} lines is wanted.",
                "give the number of lines showing {word}.",
                "what is the line count for {word}?",
                "look for {word} and report how many lines have it.",
                "how often do we see a line about {word}?",
            ),
            "mention": (
                "how many files contain {word}?",
                "count the files with {word} in them.",
                "submit the number of files that have {word}.",
                "in how many files does {word} occur?",
                "find out how many files say {word}.",
                "count all files with the word {word}.",
                "the number of files with {word} is wanted.",
                "give the number of files showing {word}.",
                "what is the file count for {word}?",
                "look for {word} and report how many files have it.",
                "how many of the logs mention {word} at all?",
            ),
            "sum": (
                "add up the numbers of all lines.",
                "what is the sum of all numbers in the logs?",
                "submit the sum of the third column.",
                "sum the numbers of all files.",
                "find the sum of the last column.",
                "the sum over all lines is wanted.",
                "give the sum of everything in column three.",
                "what do we get when all numbers are added?",
                "report the grand total of the numbers.",
                "every line ends in a number; sum these.",
            ),
            "sum_word": (
                "add up the numbers of the lines with {word}.",
                "what is the sum of the numbers of the {word} lines?",
                "submit the sum of the third column where {word} occurs.",
                "sum the numbers of {word} in all files.",
                "find the sum of the numbers that belong to {word}.",
                "the sum over the lines with {word} is wanted.",
                "give the sum of column three for {word} only.",
                "what do we get when the numbers of {word} are added?",
                "report the total of the numbers that follow {word}.",
                "lines about {word} end in a number; sum these.",
            ),
            "distinct": (
                "how many different words are in the second column?",
                "count the distinct words of column two.",
                "submit the number of different words in column 2.",
                "the second column has how many distinct words?",
                "find out how many different words the second column has.",
                "the number of distinct words in the second column is wanted.",
                "give the number of unique words in column two.",
                "report how many unique names stand in the second place of the lines.",
                "of the words in column 2, how many are distinct?",
                "how many kinds of second words do the lines have?",
            ),
            "largest": (
                "which file is the largest?",
                "submit the name of the biggest file.",
                "find the largest of the unpacked files.",
                "name the biggest file in out.",
                "the name of the largest file is wanted.",
                "which of the logs is the biggest?",
                "give the name of the file with the most bytes.",
                "report which file takes the most space.",
                "of all logs, which has the greatest size?",
                "we look for the largest log; what is it called?",
            ),
            "total": (
                "how many lines do the logs have in all?",
                "count the lines of all files together.",
                "submit the total number of lines.",
                "find out how many lines there are.",
                "the number of lines in all files is wanted.",
                "how many lines are in the unpacked files together?",
                "give the count of all lines.",
                "report the length of all logs together, in lines.",
                "all files together have how many lines?",
                "what is the overall line count?",
            ),
        },
        tails=("", "", "", " Thanks.", " Unpack first.", " Run ./unpack first.", " Submit the answer."),
    )
    held_out_phrasings = Phrasings(
        leads=("", "Good morning! ", "Ticket for you - ", "Dear agent, "),
        cores={
            "lines": (
                "please tell me the number of lines in which {word} appears.",
                "I need a count of log lines mentioning {word}.",
                "{word} - on how many lines do we see it?",
            ),
            "mention": (
                "please tell me the number of files in which {word} appears.",
                "I need a count of files mentioning {word}.",
                "{word} - in how many of the files do we see it?",
            ),
            "sum": (
                "please tell me what all the numbers sum to.",
                "I need the numbers of every line added together.",
                "take the number at the end of each line: what is their sum?",
            ),
            "sum_word": (
                "please tell me what the numbers on lines with {word} sum to.",
                "I need the numbers next to {word} added together.",
                "take the lines with {word}: what do their numbers sum to?",
            ),
            "distinct": (
                "please tell me how many distinct words column two holds.",
                "I need the count of different second words.",
                "looking at the second column only, how many different words do you see?",
            ),
            "largest": (
                "please tell me which log is the largest one.",
                "I need to know the biggest of the files.",
                "one file is larger than the others; its name, please.",
            ),
            "total": (
                "please tell me how many lines all the files have.",
                "I need the total line count.",
                "taken together, how many lines did we log?",
            ),
        },
        tails=("", " Cheers.", " No rush.", " Be quick!"),
    )

    def scene(self, rng: Random, words: Words, phrasings: Phrasings, work: float) -> Scene:
        """Draws packed logs and a question about them."""
        names = sorted(words.several(rng.choice((2, 3, 3, 4))))
        first, second = words.several(3), words.several(rng.randint(3, 8))
        logs = _logs(rng, names, first, second)
        kind = rng.choice(("lines", "lines", "mention", "mention", "sum", "sum_word", "sum_word", "distinct",
                           "largest", "total"))  # fmt: skip
        lines = [line.split() for log in logs.values() for line in log]
        word = rng.choice(first if kind != "mention" else second)
        answer = _answer(kind, word, logs, lines)
        chunk = max(1, round(1 / work))
        files = {f"{name}.part": _pack(log, chunk) for name, log in logs.items()}
        files["unpack"] = UNPACK
        instruction = phrasings.instruction(rng, kind, word=word)
        query = QUERIES[kind].format(word=word)
        return Scene(instruction, files, answer=answer, query=query)

    def decide(self, scene: Scene, transcript: Sequence[Step]) -> str:
        """Unpacks, asks the one question, submits what it says."""
        if not listed(transcript):
            return "ls"
        shown = dict(transcript)
        if "unpacked" not in shown.get("./unpack", ""):
            return "./unpack"
        if scene.query not in shown:
            return scene.query
        return f"submit {body(shown[scene.query])}"


def _logs(rng: Random, names: Sequence[str], first: Sequence[str], second: Sequence[str]) -> dict[str, list[str]]:
    """The lines of every log; no two logs are equally large."""
    while True:
        logs = {}
        for name in names:
            seconds = rng.sample(second, rng.randint(1, len(second)))
            count = rng.randint(_LINES_PER_FILE // 2, _LINES_PER_FILE)
            logs[name] = [f"{rng.choice(first)} {rng.choice(seconds)} {rng.randint(1, 99)}" for _ in range(count)]
        sizes = {sum(len(line) + 1 for line in log) for log in logs.values()}
        used = {line.split()[0] for log in logs.values() for line in log}
        if len(sizes) == len(names) and used == set(first):
            return logs


def _answer(kind: str, word: str, logs: Mapping[str, Sequence[str]], lines: Sequence[Sequence[str]]) -> str:
    """What the question's answer is, worked out without any of the agent's tools."""
    if kind == "largest":
        return max(logs, key=lambda name: sum(len(line) + 1 for line in logs[name])) + ".log"
    numbers = {
        "lines": sum(word in line for line in lines),
        "mention": sum(any(word in line.split() for line in log) for log in logs.values()),
        "sum": sum(int(line[2]) for line in lines),
        "sum_word": sum(int(line[2]) for line in lines if word in line),
        "distinct": len({line[1] for line in lines}),
        "total": len(lines),
    }
    return str(numbers[kind])


def _pack(log: Sequence[str], chunk: int) -> str:
    """A part: ``chunk`` lines of the log in each of its own."""
    packed = []
    for start in range(0, len(log), chunk):
        text = "\n".join(log[start : start + chunk]).encode() + b"\n"
        packed.append(f"{len(text)} {hashlib.sha256(text).hexdigest()} {base64.b64encode(text).decode()}\n")
    return "".join(packed)
