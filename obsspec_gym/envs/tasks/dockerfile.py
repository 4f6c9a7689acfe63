"""Dockerfiles, read: instructions with their line numbers and heredocs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from obsspec_gym.errors import InvalidArgumentError

_DIRECTIVE = re.compile(r"#\s*([a-zA-Z][\w-]*)\s*=\s*(.+?)\s*$")
_INSTRUCTION = re.compile(r"\s*([A-Za-z]+)(?:\s+(.*))?$", re.DOTALL)
_FLAG = re.compile(r"--([a-z-]+)(?:=(\S*))?(?:\s+|$)")
_WITH_HEREDOCS = frozenset({"RUN", "COPY", "ADD"})
_HEREDOC = re.compile(r"""<<(-?)[ \t]*(?:'([^'\n]+)'|"([^"\n]+)"|\\?([\w.+/-]+))""")


class DockerfileError(InvalidArgumentError):
    """A Dockerfile cannot be read or asks for what is not supported; the message begins with the line number.

    Args:
        line: The line, from 1.
        reason: What is wrong, as the rest of a sentence.
    """

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"line {line}: {reason}")
        self.line = line


@dataclass(frozen=True, slots=True)
class Heredoc:
    """A document in the file itself.

    Attributes:
        name: The word that ends it.
        content: Its lines, each with its newline; leading tabs are gone if it was opened by ``<<-``.
        expand: Whether variables in it are meant to be replaced (the word was not quoted).
        strip: Whether it was opened by ``<<-``.
    """

    name: str
    content: str
    expand: bool = True
    strip: bool = False


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.

    Attributes:
        line: Where it begins, from 1.
        keyword: In capitals.
        flags: ``--name=value`` before the arguments, in order.
        text: The arguments as written, continued lines joined.
        heredocs: The documents that ``text`` opens, in order.
    """

    line: int
    keyword: str
    text: str
    flags: tuple[tuple[str, str], ...] = ()
    heredocs: tuple[Heredoc, ...] = ()

    @property
    def words(self) -> tuple[str, ...] | None:
        """The arguments where they are written as a JSON array of strings (the exec form); ``None`` otherwise."""
        if not self.text.startswith("["):
            return None
        try:
            words = json.loads(self.text)
        except ValueError:
            return None
        return tuple(words) if isinstance(words, list) and all(isinstance(word, str) for word in words) else None


def parse(text: str) -> list[Instruction]:
    """The instructions of a Dockerfile.

    Args:
        text: Its content.

    Raises:
        DockerfileError: If a line is no instruction, or a heredoc does not end.

    Example:
        >>> parse("FROM debian\\nRUN echo a && \\\\\\n    echo b")[1].text
        'echo a &&     echo b'
    """
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    escape, at = _directives(lines)
    instructions = []
    while at < len(lines):
        if _blank(lines[at]):
            at += 1
            continue
        begin = at
        logical, at = _join(lines, at, escape)
        found = _INSTRUCTION.match(logical)
        if found is None:
            raise DockerfileError(begin + 1, f"expected an instruction, got {logical.strip()[:40]!r}")
        keyword, rest = found[1].upper(), (found[2] or "").strip()
        flags, rest = _flags(rest) if keyword not in ("CMD", "ENTRYPOINT", "ENV", "LABEL") else ((), rest)
        heredocs: tuple[Heredoc, ...] = ()
        if keyword in _WITH_HEREDOCS:
            heredocs, at = _read_heredocs(rest, lines, at, begin + 1)
        instructions.append(Instruction(begin + 1, keyword, rest, flags, heredocs))
    return instructions


def opened_heredocs(command: str) -> Iterator[re.Match[str]]:
    """Where a shell command opens heredocs: not in quotes, comments or arithmetic, and not ``<<<``.

    The groups are ``-`` or nothing, and the word: in single quotes, in double quotes, or bare.
    """
    at, quote, arithmetic = 0, "", 0
    while at < len(command):
        character = command[at]
        if quote:
            if character == "\\" and quote == '"':
                at += 1
            elif character == quote:
                quote = ""
        elif character == "\\":
            at += 1
        elif character in "'\"":
            quote = character
        elif character == "#" and (at == 0 or command[at - 1] in " \t\n;"):
            at = (command + "\n").index("\n", at)
        elif command.startswith("((", at):
            arithmetic, at = arithmetic + 1, at + 1
        elif arithmetic and command.startswith("))", at):
            arithmetic, at = arithmetic - 1, at + 1
        elif command.startswith("<<<", at):
            at += 2
        elif not arithmetic and (found := _HEREDOC.match(command, at)):
            yield found
            at = found.end() - 1
        at += 1


def _directives(lines: list[str]) -> tuple[str, int]:
    """The escape character, and the first line after the parser directives."""
    escape = "\\"
    for at, text in enumerate(lines):
        found = _DIRECTIVE.match(text.strip())
        if found is None:
            return escape, at
        if found[1].lower() == "escape":
            if found[2] not in ("\\", "`"):
                raise DockerfileError(at + 1, f"escape must be \\ or `, got {found[2]!r}")
            escape = found[2]
    return escape, len(lines)


def _blank(line: str) -> bool:
    return not line.strip() or line.lstrip().startswith("#")


def _join(lines: list[str], at: int, escape: str) -> tuple[str, int]:
    """A line with those that continue it (comments and empty lines among them are skipped), and where they end."""
    joined = ""
    while at < len(lines):
        line = lines[at]
        at += 1
        if joined and _blank(line):
            continue
        stripped = line.rstrip(" \t")
        if not stripped.endswith(escape):
            return joined + line, at
        joined += stripped[: -len(escape)]
    return joined, at


def _flags(text: str) -> tuple[tuple[tuple[str, str], ...], str]:
    flags = []
    while found := _FLAG.match(text):
        flags.append((found[1], found[2] or ""))
        text = text[found.end() :]
    return tuple(flags), text


def _read_heredocs(text: str, lines: list[str], at: int, line: int) -> tuple[tuple[Heredoc, ...], int]:
    """The documents that ``text`` opens, which follow from line ``at`` on, and where they end."""
    documents = []
    for found in opened_heredocs(text):
        strip, name = bool(found[1]), found[2] or found[3] or found[4]
        content = ""
        while True:
            if at >= len(lines):
                raise DockerfileError(line, f"the heredoc {name} does not end")
            body = lines[at].lstrip("\t") if strip else lines[at]
            at += 1
            if body == name:
                break
            content += body + "\n"
        expands = found[4] is not None and "\\" not in found[0]
        documents.append(Heredoc(name, content, expands, strip))
    return tuple(documents), at
