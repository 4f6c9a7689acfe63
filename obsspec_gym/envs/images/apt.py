"""This machine's Debian archive: where apt gets packages from, and how."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from obsspec_gym.errors import SandboxUnavailableError

_ARCHIVE = re.compile(r"/(debian|debian-security|ubuntu|ubuntu-ports|raspbian)(\.list)?/?(\s|$)")
_OPTION = re.compile(r"Acquire::(https?|Retries|Check-|Allow|Force|Max|Proxy|Queue)", re.IGNORECASE)


def sources() -> dict[str, str]:
    """apt's sources as they are set up here, of the distribution itself and of nobody else.

    Returns:
        File name (by which apt tells the format) to content; only files with something in them.

    Raises:
        SandboxUnavailableError: If there is none.
    """
    settings = dict(
        line.split("=", 1)
        for line in _ask("shell", "LIST", "Dir::Etc::sourcelist/f", "PARTS", "Dir::Etc::sourceparts/d")
    )
    paths = [Path(settings.get("LIST", "'/etc/apt/sources.list'").strip("'"))]
    parts = Path(settings.get("PARTS", "'/etc/apt/sources.list.d'").strip("'"))
    paths += sorted(path for path in parts.glob("*") if path.suffix in (".list", ".sources"))
    texts = {path: path.read_text("utf-8", "replace") for path in paths if path.is_file()}
    lines = [line for path, text in texts.items() if path.suffix != ".sources" for line in text.splitlines()]
    stanzas = [s for path, text in texts.items() if path.suffix == ".sources" for s in re.split(r"\n\s*\n", text)]
    found = {
        "archive.list": "".join(f"{line}\n" for line in lines if re.match(r"deb\s", line) and _ARCHIVE.search(line)),
        "archive.sources": "\n".join(f"{stanza.strip()}\n" for stanza in stanzas if _is_archive(stanza)),
    }
    if not any(found.values()):
        raise SandboxUnavailableError("apt has no Debian or Ubuntu archive in its sources: images need one")
    return {name: text for name, text in found.items() if text}


def options() -> list[str]:
    """How apt reaches the archive here (proxies, retries), as lines of its configuration."""
    return [line for line in _ask("dump", "--no-empty", "--format", '%F "%v";%n') if _OPTION.match(line)]


def _is_archive(stanza: str) -> bool:
    fields = dict(re.findall(r"(?mi)^(types|uris|enabled):[ \t]*(.*)$", stanza.lower()))
    urls = fields.get("uris", "").split()
    enabled = fields.get("enabled", "yes") not in ("no", "false", "0")
    return enabled and "deb" in fields.get("types", "").split() and any(_ARCHIVE.search(url) for url in urls)


def _ask(*words: str) -> list[str]:
    program = shutil.which("apt-config")
    if program is None:
        raise SandboxUnavailableError(
            "images are built from the Debian archive by apt, which this machine does not have"
        )
    done = subprocess.run([program, *words], capture_output=True, text=True, timeout=30, check=False)
    return [line for line in done.stdout.splitlines() if line]
