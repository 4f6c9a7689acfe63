"""Whether a predicted observation can still come true once part of the output is known."""

from __future__ import annotations

import re
from typing import Any

_ELISION = re.compile(r"^\[\.\.\. \d+ bytes elided \.\.\.\]$", re.MULTILINE)
_REPLACEMENT = "\ufffd"


def may_continue(partial: str, observation: Any) -> bool:
    """Whether an observation can be what output that began with ``partial`` becomes.

    The text of an observation begins with the output, so the rule is: it begins with ``partial``. Two things
    weaken it. A character cut in two at the end of ``partial`` reads as U+FFFD and is not compared; and where the
    observation says that its middle was elided, only what stands before the elision line is compared.

    Args:
        partial: What the tool has printed so far, decoded.
        observation: The prediction; one that is no text fits only an empty ``partial``.

    Example:
        >>> may_continue("a", "a\\nb\\n[exit 0] ~"), may_continue("b", "a\\nb\\n[exit 0] ~")
        (True, False)
    """
    partial = partial.rstrip(_REPLACEMENT)
    if not partial:
        return True
    if not isinstance(observation, str):
        return False
    if observation.startswith(partial):
        return True
    elision = _ELISION.search(observation)
    if elision is None:
        return False
    # The kept head may have got a newline of its own before the elision line.
    head = observation[: elision.start()].removesuffix("\n").rstrip(_REPLACEMENT)
    return partial.startswith(head)
