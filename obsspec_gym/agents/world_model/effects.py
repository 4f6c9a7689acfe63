"""Whether a shell command may leave anything changed: decides which commands a memory may overlook."""

from __future__ import annotations

import shlex
from functools import lru_cache

_READER_NAMES = (
    "[ basename cat cksum cmp column comm cut date df diff dirname du echo egrep expr false fgrep file find fold "
    "grep head hostname id jq ls md5sum nl od paste printenv printf ps pwd readlink realpath rev rg sed seq "
    "sha1sum sha256sum sort stat strings tac tail test tr tree true type uname wc whereis which whoami"
)
_READERS = frozenset(_READER_NAMES.split())
# Readers that write when told to. Options are compared by prefix: one too many only makes the answer cautious.
_WRITING_OPTIONS = {
    "date": ("-s", "--set"),
    "find": ("-delete", "-exec", "-ok", "-fls", "-fprint"),
    "printf": ("-v",),
    "rg": ("--pre",),
    "sort": ("-o", "--output"),
    "tree": ("-o",),
}
_GIT_READERS = frozenset({"blame", "describe", "diff", "grep", "log", "ls-files", "rev-parse", "show", "status"})
_CONNECTORS = frozenset({";", "|", "||", "&&", "|&"})
_HARMLESS_TARGETS = frozenset({"/dev/null", "/dev/stdout", "/dev/stderr", "1", "2"})


def may_change_state(command: object) -> bool:
    """Whether running ``command`` may change what later commands print.

    The answer is cautious: everything that is not plainly a reading command counts as changing (unknown programs,
    substitutions, redirections, several lines, actions that are no text). A wrong "no" costs a wrong prediction,
    never a wrong rollout.

    Example:
        >>> may_change_state("grep -rn error src | head"), may_change_state("echo 3 > n"), may_change_state("make")
        (False, True, True)
    """
    return not isinstance(command, str) or _may_change_state(str(command))


@lru_cache(maxsize=4096)  # asked again for every command of a history at every turn
def _may_change_state(command: str) -> bool:
    if any(sign in command for sign in ("$(", "${", "`", "\n")):
        return True
    try:
        lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
        lexer.commenters = ""
        words = iter(list(lexer))
    except ValueError:  # an unclosed quote
        return True
    program: list[str] = []
    for word in words:
        if not word or word[0] not in ";<>|&()":
            program.append(word)
        elif word in _CONNECTORS:
            if _writes(program):
                return True
            program = []
        elif word in (">", ">>", ">&", "&>") and next(words, "") in _HARMLESS_TARGETS:
            if program[-1:] in (["1"], ["2"]):
                program.pop()  # the descriptor in front of the redirection
        elif word != "<":
            return True  # output to a file, background jobs, subshells, here-documents
    return _writes(program)


def _writes(words: list[str]) -> bool:
    if not words:
        return False
    program, options = words[0], words[1:]
    if program == "git":
        return not options or options[0] not in _GIT_READERS or any(o.startswith("--output") for o in options)
    if program not in _READERS:
        return True
    if program == "sed":  # -i in any cluster of options, and the script's own w
        return any("w" in option or (option[:1] == "-" and "i" in option) for option in options)
    return any(option.startswith(_WRITING_OPTIONS.get(program, ())) for option in options)
