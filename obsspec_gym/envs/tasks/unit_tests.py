"""Run a test suite, see which module fails, repair it, run the suite again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random

from obsspec_gym.envs.tasks.family import (
    OWN_FILES,
    Phrasings,
    Scene,
    Step,
    body,
    is_edit,
    listed,
    repetitions,
    since_edit,
    substitute,
)
from obsspec_gym.envs.tasks.words import Words

RUN_TESTS = """\
#!/bin/bash
# Runs every module on its recorded cases; stops at the first module that fails.
passed=0
for module in *.sh; do
  name=${module%.sh}
  while read -r x want; do
    got=$(bash "$module" "$x" 2>&1)
    if [ "$got" != "$want" ]; then
      echo "FAIL $name"
      exit 1
    fi
  done < "cases/$name"
  passed=$((passed + 1))
done
echo "$passed passed"
"""

TRIAL = (
    OWN_FILES
    + """\
exec 2> /dev/null
mapfile -t names < "$VERIFIER/names"
own "${names[@]/%/.sh}"
while read -r name x; do
  IFS= read -r -N 100 got < <(bash "$name.sh" "$x" < /dev/null)
  echo "$name $x ${got%"${got##*[!$'\\n']}"}"
done < "$VERIFIER/inputs"
"""
)

_CASES = 40
_UNSEEN_CASES = 4
_LIMIT = 60


class UnitTests:
    """A few one-line shell functions, each with its formula in a comment; one or two do not compute it."""

    name = "tests"
    phrasings = Phrasings(
        leads=("", "", "", "Hi. ", "Please help: ", "Next task. ", "Hello, ", "A small repair. ", "Urgent: "),
        cores={
            "named": (
                "the test of {name} fails. Repair it.",
                "module {name} does not pass its test. Make all tests pass.",
                "{name} is broken. Run the tests and fix it.",
                "run_tests prints FAIL {name}. Fix the module.",
                "the suite fails at {name}; correct the code.",
                "somebody broke {name}. Get the tests to pass again.",
                "we see FAIL {name} in the tests. Fix the formula.",
                "fix {name} so that run_tests passes.",
                "since yesterday the tests fail at {name}. Please repair.",
                "{name} computes wrong results. Correct it.",
                "tests stop with FAIL {name}. The comment says what it should compute.",
                "repair {name}, then run all tests.",
            ),
            "unnamed": (
                "one module fails its test. Find and fix it.",
                "make run_tests pass.",
                "the tests do not pass. Repair the code.",
                "a module computes the wrong thing. Run the tests to see which.",
                "fix whatever run_tests complains about.",
                "some test fails. Correct the module.",
                "get all the tests to pass.",
                "the test suite is red. Make it green.",
                "please debug this project until every test passes.",
                "run the tests and fix the fault.",
            ),
        },
        tails=("", "", "", " Thanks.", " Then submit.", " Submit when the tests pass.", " Only change the module."),
    )
    held_out_phrasings = Phrasings(
        leads=("", "Good morning! ", "Ticket for you - ", "Dear agent, "),
        cores={
            "named": (
                "our nightly job reported FAIL {name}, have a look and mend it.",
                "can you get {name} working according to its comment?",
                "a colleague edited {name} and now the checks are unhappy. Put it right.",
                "I think {name} has a typo in its arithmetic.",
                "what is wrong with {name}? Solve it.",
            ),
            "unnamed": (
                "something here is off, the test runner will show you what. Mend it.",
                "there is a bug in one of these scripts.",
                "we want zero failing tests before the release.",
                "could you bring this code into line with its comments?",
                "debugging needed: not every script passes.",
            ),
        },
        tails=("", " Cheers.", " Hand in once it is done.", " Be quick!"),
    )

    def scene(self, rng: Random, words: Words, phrasings: Phrasings, work: float) -> Scene:
        """Draws a project with one fault, sometimes two."""
        names = sorted(words.several(rng.choice((2, 3, 3, 4))))
        faulty = sorted(rng.sample(names, 2 if rng.random() < 0.2 else 1))
        files = {"run_tests": RUN_TESTS}
        inputs, expected = "", ""
        for name in names:
            formula, wrong = _faulty_formula(rng)
            files[f"{name}.sh"] = _module(formula, wrong if name in faulty else formula)
            rows = _rows(rng, formula, wrong)
            files[f"cases/{name}"] = "".join(rows[: repetitions(_CASES, work)])
            unseen = _unseen(rows)
            inputs += "".join(f"{name} {x}\n" for x in unseen)
            expected += "".join(f"{name} {x} {_evaluate(formula, x)}\n" for x in unseen)
        kind = "named" if rng.random() < 0.65 else "unnamed"
        instruction = phrasings.instruction(rng, kind, name=faulty[0])
        tried = {"names": "".join(f"{name}\n" for name in names), "inputs": inputs}
        return Scene(instruction, files, trial=TRIAL, trial_files=tried, tried=expected)

    def decide(self, scene: Scene, transcript: Sequence[Step]) -> str:
        """Runs the tests, reads the module that fails, repairs it, runs them again."""
        if not listed(transcript):
            return "ls"
        result = since_edit(transcript, "./run_tests")
        if result is not None and "passed" in result:
            return "submit"
        target = _last_failure(transcript)
        if target is None:
            return "./run_tests"
        shown = since_edit(transcript, f"cat {target}.sh")
        if shown is not None:
            repair = _repair(f"{target}.sh", body(shown))
            return repair if repair else "./run_tests"
        if result is None and _repaired(transcript, target):
            return "./run_tests"
        return f"cat {target}.sh"


def _faulty_formula(rng: Random) -> tuple[str, str]:
    """A formula, and the same with one fault that a ``sed`` can hit without hitting the comment."""
    while True:
        factor, constant = rng.randint(2, 9), rng.randint(10, 99)
        sign = rng.choice("+-")
        right = [str(factor), sign, str(constant)]
        wrong = list(right)
        place = rng.choice((0, 1, 2, 2, 2))
        options = ([str(d) for d in range(2, 10)], ["+", "-"], [str(c) for c in range(10, 100)])[place]
        wrong[place] = rng.choice([option for option in options if option != right[place]])
        formula, fault = (f"x * {a} {b} {c}" for a, b, c in (right, wrong))
        if wrong[place] not in formula:
            return formula, fault


def _module(comment: str, formula: str) -> str:
    return f"# {comment}\nx=$1\necho $(({formula}))\n"


def _rows(rng: Random, formula: str, wrong: str) -> list[str]:
    """Recorded cases, ``x want``; the first tells the formula from the wrong one."""
    values = rng.sample(range(1, _LIMIT + 1), _CASES)
    values.sort(key=lambda x: _evaluate(formula, x) == _evaluate(wrong, x))
    return [f"{x} {_evaluate(formula, x)}\n" for x in values]


def _unseen(rows: Sequence[str]) -> list[int]:
    """Inputs that are in no recorded case: nothing tells what is expected of them but the formula."""
    recorded = {int(row.split()[0]) for row in rows}
    return [x for x in range(1, _LIMIT + 1) if x not in recorded][:_UNSEEN_CASES]


def _evaluate(formula: str, x: int) -> int:
    _, _, factor, sign, constant = formula.split()
    return x * int(factor) + (int(constant) if sign == "+" else -int(constant))


def _last_failure(transcript: Sequence[Step]) -> str | None:
    """The module that the last run of the tests named."""
    for command, observation in reversed(transcript):
        if command == "./run_tests":
            found = re.search(r"^FAIL (\w+)$", observation, re.MULTILINE)
            return found[1] if found else None
    return None


def _repair(file: str, content: str) -> str | None:
    """The edit that makes a module's code agree with its comment; ``None`` where it does."""
    lines = content.split("\n")
    want, code = lines[0].removeprefix("# ").split(), lines[-1].removeprefix("echo $((").removesuffix("))").split()
    for right, wrong in zip(want, code, strict=False):
        if right != wrong:
            return substitute(wrong, right, file)
    return None


def _repaired(transcript: Sequence[Step], target: str) -> bool:
    """Whether the last edit was the right one for what the module showed before it."""
    file = f"{target}.sh"
    repair, repaired = None, False
    for command, observation in transcript:
        if command == f"cat {file}":
            repair, repaired = _repair(file, body(observation)), False
        elif is_edit(command):
            repaired = command == repair
    return repaired
