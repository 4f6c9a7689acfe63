"""How Harbor tasks are graded: by their ``tests/test.sh``, or by pytest where that needs a network."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

REWARDS = ("/logs/verifier/reward.txt", "/logs/verifier/reward.json")
"""Where a task's ``tests/test.sh`` leaves its reward; the first that there is counts."""

_NETWORK = re.compile(
    r"\b(curl|wget|uvx?|npx|npm|yarn|pnpm|git\s+clone|(apt|apt-get|apk|dnf|yum|pip3?|cargo|gem)\s+(-\S+\s+)*(update|install|add))\b"
)
_SYSTEM = re.compile(
    r"(?<![\w./~-])/(usr|etc|bin|sbin|lib(32|64|x32)?|boot)\b"
    r"|\bshutil\.which\b|\bcommand -v\b|\b(dpkg|getent)\b|\bget(pw|gr)(nam|uid|gid|all)\b"
    r"|\bpip3? (show|list|freeze)\b|\bimportlib\.metadata\b"
)
_INTERPRETER = re.compile(r"(?<![\w.])(/usr)?/bin/(env|(ba|da)?sh|python3?)\b(?!/)")
_PREPARE = """
# None of these programs is looked for where the Dockerfile's PATH says.
path=$PATH PATH=/usr/sbin:/usr/bin:/sbin:/bin
# Nothing that an agent left where tests and rewards belong is looked at.
for place in /tests /logs/verifier; do
  rm -rf "$place" 2> /dev/null
  mkdir -p "$place" && [ ! -L "$place" ] && find "$place" -mindepth 1 -delete || exit 1
done
cp -r "$VERIFIER/tests/." /tests || exit 1
# Nor what an agent has laid in a home for every Python to load.
export PYTHONNOUSERSITE=1
PATH=$path
"""
_PYTEST = """
exec /usr/bin/python3 -I -m pytest -q -p no:cacheprovider -c /dev/null --rootdir /tests {files}
"""


def needs_network(script: str) -> bool:
    """Whether a ``test.sh`` calls a program that fetches something.

    Example:
        >>> needs_network("apt-get install -y curl"), needs_network("pytest /tests # curl was here")
        (True, False)
    """
    return any(_NETWORK.search(re.sub(r"(^|\s)#.*", "", line)) for line in script.splitlines())


def looks_at_system(text: str) -> bool:
    """Whether tests or an instruction are about the system's own places (``/usr``, ``/etc``, ``/lib`` ...).

    That is, they name one that is not an interpreter, or ask for programs, packages or accounts.

    Example:
        >>> looks_at_system("test -x /usr/local/bin/tool"), looks_at_system("#!/bin/sh -e; ls /srv/etc")
        (True, False)
    """
    return _SYSTEM.search(_INTERPRETER.sub("", text)) is not None


def verifier(tests: Mapping[str, bytes]) -> tuple[str, tuple[str, ...]]:
    """The script that grades, and where it leaves rewards."""
    script = tests.get("tests/test.sh")
    if script is not None and not needs_network(script.decode("utf-8", "replace")):
        return f"{_PREPARE}/bin/bash /tests/test.sh\n", REWARDS
    files = sorted(f"/{path}" for path in tests if re.fullmatch(r"tests/test_[^/]*\.py", path))
    if not files:
        return "echo 'tests/test.sh needs the network, and there is no tests/test_*.py'; exit 1", ()
    # What the tests run may be an agent's: a reward file that appears meanwhile would be no one's verdict.
    return _PREPARE + _PYTEST.format(files=shlex.join(files)), ()
