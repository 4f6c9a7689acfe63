"""The command line, ``obsspec``: demo, rollout, train, simulate, bench, trace, image, suite, doctor.

::

    app.py        the commands and their options; what goes wrong becomes one sentence and an exit status
    demo.py       sequential, speculative and oracle, side by side
    rollout.py    episodes to files
    train.py      a training from its configuration
    simulate.py   what speculation would bring to a workload
    bench.py      the project's measurements
    trace.py      what a run's trace shows
    image.py      the file systems that sandboxes are made from
    suite.py      which tasks of a suite can be made and solved
    doctor.py     what this machine can do
    workload.py   which tasks, in which environments
    progress.py   what is shown while it runs
    tables.py     what is shown at the end
    files.py      what is written
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

INTERRUPTED = 130
"""The exit status after Ctrl-C: 128 + SIGINT."""

_AGAIN_SECONDS = 0.01  # by then whatever could not be interrupted is usually over; if not, it comes yet again


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs ``obsspec``.

    Args:
        arguments: The words after ``obsspec``; by default the process's own.

    Returns:
        The exit status: 0; 1 where something went wrong under way; 2 where something was asked that cannot be done,
        and nothing was started; 130 after Ctrl-C.
    """
    try:
        with no_interrupt_lost():
            from obsspec_gym.cli.app import run

            return run(arguments)
    except KeyboardInterrupt:
        print("obsspec: interrupted; everything that was started is ended", file=sys.stderr)
        return INTERRUPTED


@contextmanager
def no_interrupt_lost() -> Iterator[None]:
    """A Ctrl-C that arrives in a finaliser or a callback of the import system comes once more.

    Python cannot raise it there: it would print the KeyboardInterrupt and go on.
    """
    before = sys.unraisablehook

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            threading.Timer(_AGAIN_SECONDS, os.kill, (os.getpid(), signal.SIGINT)).start()
        else:
            before(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before
