"""Compile, read the error, repair the source, compile again, run the program and submit what it prints."""

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
    listed,
    repetitions,
    since_edit,
    substitute,
)
from obsspec_gym.envs.tasks.words import Words

BUILD = """\
#!/bin/bash
# Compiles every .fn module, tabulates it for inputs 1, 2, ... and links the app; stops at the first error.
rows={rows}
stop() {{ echo "$1"; exit 1; }}
rm -rf obj app
mkdir obj
modules=(*.fn)
set -f
for module in "${{modules[@]}}"; do
  number=0 names=" x " code='x=$1'
  while read -r word rest; do
    number=$((number + 1))
    case $word in
      let) names+="${{rest%% *}} "; code+="; ${{rest/ = /=}}" ;;
      put)
        for name in $rest; do
          [[ $name != [a-z]* || $names == *" $name "* ]] || stop "$module:$number: $name undefined"
        done
        code+="; echo \\$(($rest))" ;;
      *) stop "$module:$number: $word unknown" ;;
    esac
  done < "$module"
  for row in $(seq "$rows"); do
    bash -c "$code" "$module" "$row" || stop "$module: no result for $row"
  done > "obj/${{module%.fn}}"
done
printf '%s\\n' '#!/bin/bash' 'total=0' \\
  'for table in obj/*; do read -r value < "$table"; total=$((total + value)); done' 'echo $total' > app
chmod +x app
echo "${{#modules[@]}} modules built"
"""

TRIAL = (
    OWN_FILES
    + """\
exec 2> /dev/null < /dev/null
own app *.fn
bash ./app | head -c 100
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cp -- *.fn "$scratch" && cd "$scratch" && bash "$VERIFIER/build" > /dev/null || exit 1
bash ./app | head -c 100
"""
)
"""What the app prints as the agent built it, and as built anew."""

KEYWORD_SLIPS = {
    "lte": "let", "lett": "let", "set": "let", "lat": "let", "leet": "let",
    "putt": "put", "ptu": "put", "puts": "put", "pot": "put", "say": "put",
}  # fmt: skip
"""Misspelt keywords, and what was meant."""

_ROWS = 40
_ERROR = re.compile(r"^(\w+\.fn):\d+: (\S+) (undefined|unknown)$", re.MULTILINE)


class Build:
    """A few modules in a toy language with its own compiler; one or two of them do not compile."""

    name = "build"
    phrasings = Phrasings(
        leads=("", "", "", "Hi. ", "Please help: ", "Next task. ", "Hello, ", "Release day. ", "Urgent: "),
        cores={
            "reported": (
                "the build stops with {error}. Fix it and submit what ./app prints.",
                "we get {error} from ./build. Repair it, build, run ./app and submit the number.",
                "{error} says the compiler. Correct the source; submit the output of the app.",
                "build error: {error}. Fix it and submit the number that ./app prints.",
                "compiling gives {error}. Make it build and submit what the app prints.",
                "./build prints {error}. After the fix run ./app and submit its output.",
                "I see {error} when I build. Repair it and hand in the output of ./app with submit.",
                "fix {error} in this program, then run it and submit the result.",
            ),
            "silent": (
                "make this program build, run ./app and submit what it prints.",
                "the build is broken. Fix it and submit the output of ./app.",
                "build the app. If there is an error, fix it. Submit the number it prints.",
                "one module does not compile. Repair it; submit what the app prints.",
                "run ./build, correct the errors, and submit the result of ./app.",
                "get the app to compile and submit its number.",
                "the compiler complains. Fix the source, build again and submit what ./app says.",
                "please repair the build and submit the output of the app.",
            ),
        },
        tails=("", "", "", " Thanks.", " Only change the sources.", " Start with ls.", " Keep the other modules."),
    )
    held_out_phrasings = Phrasings(
        leads=("", "Good morning! ", "Ticket for you - ", "Dear agent, "),
        cores={
            "reported": (
                "my colleague cannot compile, he reads {error}. Sort it out and tell us the value of the program.",
                "since the last commit there is {error}; we need the value that the program shows.",
                "what does the program show once {error} is gone?",
                "please mend {error} and report the program's value.",
                "the log of our CI ends in {error}. Sort it out, then report the total.",
            ),
            "silent": (
                "which value does this program show? It needs mending first.",
                "somebody left the code in a state that cannot be compiled. Mend it and report the total.",
                "bring the program to life and tell us its total.",
                "find out why compilation stops, solve it, and report the value shown.",
                "we need the total of this program, but it has a mistake in it.",
            ),
        },
        tails=("", " Cheers.", " No rush.", " Be quick!"),
    )

    def scene(self, rng: Random, words: Words, phrasings: Phrasings, work: float) -> Scene:
        """Draws a program with one fault, sometimes two, in different modules."""
        names = sorted(words.several(rng.choice((2, 3, 3, 4))))
        faulty = sorted(rng.sample(names, 2 if rng.random() < 0.2 else 1))
        files = {"build": BUILD.format(rows=repetitions(_ROWS, work))}
        total, errors = 0, []
        for name in names:
            source, value = _module(rng, words)
            total += value
            if name in faulty:
                source, fault = _broken(rng, words, source)
                errors.append(f"{name}.fn:{fault}")
            files[f"{name}.fn"] = source
        kind = "reported" if rng.random() < 0.6 else "silent"
        instruction = phrasings.instruction(rng, kind, error=errors[0])
        builder = {"build": BUILD.format(rows=1)}
        tried = f"{total}\n{total}\n"
        return Scene(instruction, files, answer=str(total), trial=TRIAL, trial_files=builder, tried=tried)

    def decide(self, scene: Scene, transcript: Sequence[Step]) -> str:
        """Builds, reads the module an error names, repairs it, builds again, runs the app, submits."""
        if not listed(transcript):
            return "ls"
        result = since_edit(transcript, "./build")
        if result is None:
            return "./build"
        error = _ERROR.search(result)
        if error is not None:
            return self._repair(transcript, *error.groups())
        output = since_edit(transcript, "./app")
        if output is None:
            return "./app"
        return f"submit {body(output)}"

    def _repair(self, transcript: Sequence[Step], file: str, word: str, problem: str) -> str:
        if problem == "unknown":
            return substitute(word, KEYWORD_SLIPS.get(word, "let"), file)
        source = since_edit(transcript, f"cat {file}")
        if source is None:
            return f"cat {file}"
        declared = re.findall(r"^let (\w+)", source, re.MULTILINE)
        shown = re.findall(r"^put (.*)$", source, re.MULTILINE)
        used = set(" ".join(shown).split())
        return substitute(word, next((name for name in declared if name not in used), "x"), file)


def _module(rng: Random, words: Words) -> tuple[str, int]:
    """A module's source and its value for input 1."""
    first, second = words.several(2)
    values = {first: rng.randint(2, 9), second: rng.randint(10, 99), "x": 1}
    left, middle, right = "x", first, second
    if rng.random() < 0.5:
        left, middle = middle, left
    lines = [f"let {name} = {values[name]}\n" for name in (first, second)]
    if rng.random() < 0.5:
        lines.reverse()
    source = "".join(lines) + f"put {left} * {middle} + {right}\n"
    return source, values[left] * values[middle] + values[right]


def _broken(rng: Random, words: Words, source: str) -> tuple[str, str]:
    """The source with a fault, and what the compiler says about it after the file's name."""
    lines = source.split("\n")
    if rng.random() < 0.35:
        slip = rng.choice([slip for slip in KEYWORD_SLIPS if slip not in source])
        keyword = KEYWORD_SLIPS[slip]
        number = 3 if keyword == "put" else rng.choice((1, 2))
        lines[number - 1] = lines[number - 1].replace(keyword, slip, 1)
        return "\n".join(lines), f"{number}: {slip} unknown"
    name = rng.choice([name for name in lines[2].split() if len(name) > 1 and name != "put"])
    wrong = words.draw()
    lines[2] = lines[2].replace(name, wrong)
    return "\n".join(lines), f"3: {wrong} undefined"
