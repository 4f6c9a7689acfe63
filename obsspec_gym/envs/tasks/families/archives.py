"""Find the archive that is intact, and take out of it what is asked for."""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import tarfile
from collections.abc import Mapping, Sequence
from random import Random

from obsspec_gym.envs.sandbox.files import EPOCH
from obsspec_gym.envs.tasks.families.common import (
    HELD_OUT_LEADS,
    HELD_OUT_TAILS,
    LEADS,
    TAILS,
    ask,
    read,
    succeeded,
)
from obsspec_gym.envs.tasks.family import OWN_FILES, Phrasings, Scene, Step, listed, repetitions
from obsspec_gym.envs.tasks.words import Words

VERIFY = """\
#!/bin/bash
# Reads every archive (from a slow tape, so to speak) and compares it with its checksum.
while read -r sum archive; do
  for _ in $(seq {rounds}); do got=$(sha256sum "$archive" | cut -d' ' -f1); done
  if [ "$got" = "$sum" ]; then echo "$archive intact"; else echo "$archive damaged"; fi
done < sums
"""

VERIFIER = (
    OWN_FILES
    + """\
while read -r path; do
  own "$path"
  cmp -s "$path" "$VERIFIER/$path" || exit 1
done < "$VERIFIER/paths"
"""
)

_ROUNDS = 25
_INTACT = re.compile(r"^(\S+\.tar\.gz) intact$", re.MULTILINE)


class Archives:
    """Three backups of one directory, of which one has the checksum that was noted."""

    name = "archive"
    phrasings = Phrasings(
        leads=LEADS,
        cores={
            "one": (
                "restore {path} from the backup that is intact (./verify tells).",
                "get {path} out of the good archive.",
                "we need {path} back. Only one archive is intact, run ./verify.",
                "extract {path} from the backup with the right checksum.",
                "unpack {path} from the archive that ./verify calls intact.",
                "{path} is lost. Take it from the undamaged archive.",
                "bring {path} back from the backups, but not from a damaged one.",
                "find the intact backup and extract {path} from it.",
            ),
            "all": (
                "restore everything from the backup that is intact (./verify tells).",
                "unpack the good archive here.",
                "we need all files back. Only one archive is intact, run ./verify.",
                "extract the backup with the right checksum.",
                "unpack the archive that ./verify calls intact.",
                "all files are lost. Take them from the undamaged archive.",
                "bring all files back from the backups, but not from a damaged one.",
                "find the intact backup and extract it.",
            ),
            "files": (
                "how many files are in the backup that is intact?",
                "count the files in the good archive.",
                "submit the number of files in the archive that ./verify calls intact.",
                "only one archive is intact. How many files does it hold?",
                "the number of files in the undamaged backup is wanted.",
                "list the archive with the right checksum and submit how many files it has.",
                "find the intact backup and report its number of files.",
                "the undamaged archive has how many files?",
            ),
            "value": (
                "what does {path} say in the backup that is intact? Submit the line.",
                "submit the content of {path} in the good archive.",
                "only one archive is intact. Which line is in its {path}?",
                "print {path} from the archive that ./verify calls intact and submit it.",
                "the text of {path} in the undamaged backup is wanted.",
                "look into the archive with the right checksum and submit what {path} holds.",
                "find the intact backup and report the line in {path}.",
                "the undamaged archive has which line in {path}?",
            ),
        },
        tails=TAILS,
    )
    held_out_phrasings = Phrasings(
        leads=HELD_OUT_LEADS,
        cores={
            "one": (
                "a disk failed, and with it went {path}. Trust no backup before you checked it.",
                "please recover {path}; two of our tapes went bad.",
                "I want {path} as in the valid tape.",
                "could you recover {path} from whichever tape passes validation?",
            ),
            "all": (
                "a disk failed and took everything. Trust no backup before you checked it.",
                "please recover the whole directory; two of our tapes went bad.",
                "I want the whole directory as in the valid tape.",
                "could you recover the directory from whichever tape passes validation?",
            ),
            "files": (
                "please tell me the amount of files on the valid tape; the others went bad.",
                "I want to know the amount of files that could be recovered from a valid tape.",
                "which amount of files does the tape that passes validation contain?",
            ),
            "value": (
                "please read me {path} as on the valid tape; the others went bad.",
                "I want to know the wording of {path} on the valid tape.",
                "which wording has {path} on the tape that passes validation?",
            ),
        },
        tails=HELD_OUT_TAILS,
    )

    def scene(self, rng: Random, words: Words, phrasings: Phrasings, work: float) -> Scene:
        """Draws archives of one directory; two of them do not have the checksum that was noted."""
        place = words.draw()
        paths = sorted(f"{place}/{name}" for name in words.several(rng.randint(3, 5)))
        names = sorted(f"{name}.tar.gz" for name in words.several(3))
        intact = rng.choice(names)
        files: dict[str, str | bytes] = {"verify": VERIFY.format(rounds=repetitions(_ROUNDS, work))}
        contents: Mapping[str, str] = {}
        sums = []
        for name in names:
            inside = {path: f"{words.draw()} {rng.randint(10, 99)}\n" for path in paths}
            if name != intact:
                inside = dict(rng.sample(sorted(inside.items()), rng.randint(2, len(inside))))
            files[name] = archive = _packed(inside)
            noted = archive if name == intact else archive + b"?"
            sums.append(f"{hashlib.sha256(noted).hexdigest()} {name}\n")
            contents = inside if name == intact else contents
        files["sums"] = "".join(sums)
        kind = rng.choice(("one", "all", "files", "value"))
        facts = {"kind": kind, "path": rng.choice(paths)}
        instruction = phrasings.instruction(rng, kind, **facts)
        if kind in ("one", "all"):
            wanted = {path: text for path, text in contents.items() if kind == "all" or path == facts["path"]}
            expected = {**wanted, "paths": "".join(f"{path}\n" for path in wanted)}
            return Scene(instruction, files, VERIFIER, expected, facts=facts)
        answer = str(len(paths)) if kind == "files" else contents[facts["path"]].strip()
        return Scene(instruction, files, answer=answer, facts=facts)

    def decide(self, scene: Scene, transcript: Sequence[Step]) -> str:
        """Verifies, then turns to the archive that is intact."""
        if not listed(transcript):
            return "ls"
        intact = _INTACT.search(read(transcript, "./verify") or "")
        if intact is None:
            return "./verify"
        archive, path = intact[1], scene.facts["path"]
        match scene.facts["kind"]:
            case "files":
                return ask(transcript, f"tar -tzf {archive} | wc -l", "./verify")
            case "value":
                return ask(transcript, f"tar -xzOf {archive} {path}", "./verify")
            case "one":
                unpack = f"tar -xzf {archive} {path}"
            case _:
                unpack = f"tar -xzf {archive}"
        return "submit" if succeeded(transcript, unpack) else unpack


def _packed(contents: Mapping[str, str]) -> bytes:
    """A compressed archive, the same bytes every time."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path, text in contents.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mtime = len(text), EPOCH
            tar.addfile(entry, io.BytesIO(text.encode()))
    return gzip.compress(packed.getvalue(), mtime=0)
