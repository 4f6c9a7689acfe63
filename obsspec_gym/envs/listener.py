"""Whoever wants to know what a command prints before it has ended."""

from __future__ import annotations

import logging
from collections.abc import Callable

from obsspec_gym.envs.sandbox.base import CommandResult, Sandbox

logger = logging.getLogger(__name__)

OnOutput = Callable[[str], None]
"""Is told what a running command prints: text, piece by piece as it comes, on the thread that runs the command.

All pieces of a command together are its output so far, decoded and from the start, as
:meth:`~obsspec_gym.envs.observation.ObservationFormat.may_become` reads it. It should return at once: a command whose
output nobody takes waits.
"""


def run_heard(sandbox: Sandbox, command: str, timeout: float, on_output: OnOutput | None) -> CommandResult:
    """Runs a command; what it prints is told while it runs. The result is that of ``sandbox.run``.

    Args:
        sandbox: Where.
        command: As for ``sandbox.run``.
        timeout: As for ``sandbox.run``.
        on_output: Who is told. An exception of it is logged, and it is told no more of this command.
    """
    if on_output is None:
        return sandbox.run(command, timeout)
    with sandbox.stream(command, timeout) as stream:
        for text in stream:
            try:
                on_output(text)
            except Exception:  # who listens never changes what happens
                logger.exception("the listener of a command's output raised; it is told no more of it")
                break
        return stream.finish()
