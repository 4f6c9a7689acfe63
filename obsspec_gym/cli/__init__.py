"""The command line, ``obsspec``: demo, rollout, bench, image, suite, doctor.

::

    app.py        the commands and their options; what goes wrong becomes one sentence and an exit status
    demo.py       sequential, speculative and oracle, side by side
    rollout.py    episodes to files
    bench.py      the project's measurements
    image.py      the file systems that sandboxes are made from
    suite.py      which tasks of a suite can be made and solved
    doctor.py     what this machine can do
    workload.py   which tasks, in which environments
    progress.py   what is shown while it runs
    tables.py     what is shown at the end
    files.py      what is written
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

INTERRUPTED = 130
"""The exit status after Ctrl-C: 128 + SIGINT."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs ``obsspec``.

    Args:
        arguments: The words after ``obsspec``; by default the process's own.

    Returns:
        The exit status: 0; 1 where something went wrong under way; 2 where something was asked that cannot be done,
        and nothing was started; 130 after Ctrl-C.
    """
    try:
        from obsspec_gym.cli.app import run

        return run(arguments)
    except KeyboardInterrupt:
        print("obsspec: interrupted; everything that was started is ended", file=sys.stderr)
        return INTERRUPTED
