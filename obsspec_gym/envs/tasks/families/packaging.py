"""Package a few small tools: the packager says what is wrong, until it builds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random

from obsspec_gym.envs.tasks.families.common import HELD_OUT_LEADS, HELD_OUT_TAILS, LEADS, TAILS, shown
from obsspec_gym.envs.tasks.family import OWN_FILES, Phrasings, Scene, Step, listed, repetitions
from obsspec_gym.envs.tasks.words import Words

PACKAGE = """\
#!/bin/bash
# Checks the tools in src/ and bundles those of the manifest into dist/; stops at the first fault.
stop() {{ echo "$1"; exit 1; }}
rm -rf dist
read -r version < VERSION
read -r newest _ < CHANGES
[ "$version" = "$newest" ] || stop "VERSION is $version, CHANGES says $newest"
for tool in src/*.sh; do
  name=${{tool#src/}}
  grep -qx "$name" manifest || stop "manifest lacks $name"
done
mkdir dist
while read -r name; do
  [ -f "src/$name" ] || stop "manifest names $name, which is not in src"
  [ "$(head -n 1 "src/$name")" = '#!/bin/bash' ] || stop "src/$name does not begin with #!/bin/bash"
  for _ in $(seq {rounds}); do bash -n "src/$name" || stop "src/$name cannot be read"; done
  cat "src/$name" >> "dist/bundle-$version"
done < manifest
echo "$(wc -l < manifest) tools in dist/bundle-$version"
"""

VERIFIER = (
    OWN_FILES
    + """\
own VERSION manifest
cmp -s VERSION "$VERIFIER/version" || exit 1
[ "$(sort manifest)" = "$(sort "$VERIFIER/manifest")" ] || exit 1
while read -r name; do
  own "src/$name"
  cmp -s "src/$name" "$VERIFIER/src/$name" || exit 1
done < "$VERIFIER/manifest"
bundle=dist/bundle-$(cat "$VERIFIER/version")
own "$bundle"
while read -r name; do cat "$VERIFIER/src/$name"; done < manifest | cmp -s - "$bundle"
"""
)

_ROUNDS = 30
_FIXES = (
    (re.compile(r"^VERSION is \S+, CHANGES says (\S+)$", re.MULTILINE), "echo {} > VERSION"),
    (re.compile(r"^manifest lacks (\S+)$", re.MULTILINE), "echo {} >> manifest"),
    (re.compile(r"^manifest names (\S+), which", re.MULTILINE), "sed -i '/^{}$/d' manifest"),
    (re.compile(r"^(src/\S+) does not begin", re.MULTILINE), "sed -i '1i #!/bin/bash' {}"),
)
"""What the packager says, and what the expert does about it."""


class Packaging:
    """Two to four one-line tools, a manifest, a version and a list of changes; one or two of these do not agree."""

    name = "package"
    phrasings = Phrasings(
        leads=LEADS,
        cores={
            "reported": (
                "./package says {error}. Fix it and build the package.",
                "the packager reports {error}. Repair it until there is a bundle.",
                "we get {error}. Make ./package work.",
                "{error} is what ./package prints. Correct it and package again.",
                "packaging stops: {error}. Please fix.",
                "fix this and build the bundle: {error}.",
                "./package fails with {error}. Make it build.",
                "I see {error}. Solve it and run ./package.",
            ),
            "silent": (
                "make ./package build the bundle.",
                "./package fails. Fix what it complains about.",
                "build the package. If something is wrong, repair it.",
                "the tools cannot be packaged. Run ./package and fix the faults.",
                "get these tools packaged.",
                "correct manifest, version or sources until ./package is content.",
                "run the packager and repair what it finds.",
                "please build dist with ./package.",
            ),
        },
        tails=TAILS,
    )
    held_out_phrasings = Phrasings(
        leads=HELD_OUT_LEADS,
        cores={
            "reported": (
                "shipping is blocked: {error}. Put it right.",
                "could you get rid of {error} so that we can ship?",
                "our release ended in {error}, have a look and mend it.",
                "what to do about {error}? Solve it, we ship today.",
            ),
            "silent": (
                "shipping is blocked, have a look at what the release script wants.",
                "could you bring the release into a state that can be shipped?",
                "our release is not in order, mend it.",
                "we ship today, whatever is still wrong here.",
            ),
        },
        tails=HELD_OUT_TAILS,
    )

    def scene(self, rng: Random, words: Words, phrasings: Phrasings, work: float) -> Scene:
        """Draws tools with one or two faults."""
        names = sorted(f"{name}.sh" for name in words.several(rng.randint(2, 4)))
        sources = {name: f"#!/bin/bash\necho {words.draw()} $(($1 + {rng.randint(10, 99)}))\n" for name in names}
        major, minor = rng.randint(1, 9), rng.randint(1, 9)
        version = f"{major}.{minor}"
        faults = rng.sample(("version", "lacks", "names", "begin"), rng.choice((1, 1, 2)))
        missing, extra, bare = rng.choice(names), f"{words.draw()}.sh", rng.choice(names)
        listed_names = [name for name in names if not ("lacks" in faults and name == missing)]
        if "names" in faults:
            listed_names.insert(rng.randint(0, len(listed_names)), extra)
        files = {f"src/{name}": text for name, text in sources.items()}
        if "begin" in faults:
            files[f"src/{bare}"] = sources[bare].removeprefix("#!/bin/bash\n")
        old = f"{major}.{minor - 1}"
        files |= {
            "VERSION": f"{old if 'version' in faults else version}\n",
            "CHANGES": f"{version} {words.draw()} and {words.draw()}\n{old} {words.draw()}\n",
            "manifest": "".join(f"{name}\n" for name in listed_names),
            "package": PACKAGE.format(rounds=repetitions(_ROUNDS, work)),
        }
        if "version" in faults:
            error = f"VERSION is {old}, CHANGES says {version}"
        elif "lacks" in faults:
            error = f"manifest lacks {missing}"
        elif "names" in faults and ("begin" not in faults or listed_names.index(extra) < listed_names.index(bare)):
            error = f"manifest names {extra}, which is not in src"
        else:
            error = f"src/{bare} does not begin with #!/bin/bash"
        kind = rng.choice(("reported", "silent"))
        expected = {f"src/{name}": text for name, text in sources.items()} | {
            "version": f"{version}\n",
            "manifest": "".join(f"{name}\n" for name in names),
        }
        return Scene(phrasings.instruction(rng, kind, error=error), files, VERIFIER, expected)

    def decide(self, scene: Scene, transcript: Sequence[Step]) -> str:
        """Packages, repairs what the packager names, packages again."""
        if not listed(transcript):
            return "ls"
        result = shown(transcript, "./package")
        if result is None:
            return "./package"
        for fault, fix in _FIXES:
            if found := fault.search(result):
                return fix.format(found[1])
        return "submit"
