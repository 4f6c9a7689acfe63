"""Words of a Dockerfile: how they are split, what quotes in them mean, and what stands for their variables."""

from __future__ import annotations

import re
from collections.abc import Mapping

from obsspec_gym.envs.tasks.dockerfile import DockerfileError

_NAME = re.compile(r"[A-Za-z_]\w*")


def split_words(text: str, line: int) -> list[str]:
    """Arguments, split at blanks outside quotes and escapes; quotes stay for :func:`expand` to remove.

    Raises:
        DockerfileError: If a quote does not end.
    """
    words, word, quote, at = [], "", "", 0
    while at < len(text):
        character = text[at]
        if character == "\\" and quote != "'" and at + 1 < len(text):
            word += text[at : at + 2]
            at += 2
            continue
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character.isspace():
            words += [word] if word else []
            word = ""
            at += 1
            continue
        word += character
        at += 1
    if quote:
        raise DockerfileError(line, f"a quote ({quote}) does not end")
    return [*words, word] if word else words


def expand(word: str, variables: Mapping[str, str], line: int, *, quotes: bool = True) -> str:
    """A word with its quotes removed and its variables replaced; unset ones are empty.

    Args:
        word: ``$name``, ``${name}``, ``${name:-default}``, ``${name:+other}`` (also without the colon) are replaced,
            except in single quotes; a backslash keeps the next character as it is.
        variables: Their values.
        line: For messages.
        quotes: Whether quotes mean anything (in a heredoc they do not).

    Raises:
        DockerfileError: For a substitution of another form.

    Example:
        >>> expand("'$A' \\"${A}b\\" ${C:-none}", {"A": "a"}, 1)
        '$A ab none'
    """
    done, quote, at = "", "", 0
    while at < len(word):
        character = word[at]
        if quote == "'":
            quote, done = ("", done) if character == "'" else (quote, done + character)
        elif character == "\\" and at + 1 < len(word):
            # In double quotes (and in a heredoc) a backslash before anything else is itself.
            literal = quote == '"' or not quotes
            done += word[at : at + 2] if literal and word[at + 1] not in '"$\\' else word[at + 1]
            at += 1
        elif quotes and character in "'\"" and quote in ("", character):
            quote = "" if quote else character
        elif character == "$":
            value, at = _substitute(word, at, variables, line, quotes)
            done += value
            continue
        else:
            done += character
        at += 1
    return done


def _substitute(word: str, at: int, variables: Mapping[str, str], line: int, quotes: bool) -> tuple[str, int]:
    """What stands for the variable at ``at``, and where the word goes on."""
    if not word.startswith("${", at):
        found = _NAME.match(word, at + 1)
        return ("$", at + 1) if found is None else (variables.get(found[0], ""), found.end())
    depth, end = 1, at + 2
    while end < len(word) and depth:
        depth += 1 if word.startswith("${", end) else -1 if word[end] == "}" else 0
        end += 1
    inside = word[at + 2 : end - 1]
    found = _NAME.match(inside)
    if depth or found is None:
        raise DockerfileError(line, f"the substitution {word[at:end]!r} cannot be read")
    name, rest = found[0], inside[found.end() :]
    if not rest:
        return variables.get(name, ""), end
    operator = rest[: 2 if rest[0] == ":" else 1]
    chosen = variables.get(name) if operator[0] != ":" or variables.get(name) else None
    if operator.lstrip(":") == "-":
        return (expand(rest[len(operator) :], variables, line, quotes=quotes) if chosen is None else chosen), end
    if operator.lstrip(":") == "+":
        return ("" if chosen is None else expand(rest[len(operator) :], variables, line, quotes=quotes)), end
    raise DockerfileError(line, f"the substitution {word[at:end]!r} is not supported")
