"""Which programs there are where commands run."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from obsspec_gym.envs.sandbox.base import Sandbox


def missing_programs(sandbox: Sandbox, names: Iterable[str], timeout: float = 30.0) -> list[str]:
    """Those that a started sandbox's shell does not find, in the order given; nothing of it is left in the shell.

    Example:
        >>> from obsspec_gym.envs.sandbox import make_sandbox
        >>> sandbox = make_sandbox()
        >>> sandbox.start()
        >>> missing_programs(sandbox, ["bash", "no-such-program"])
        ['no-such-program']
        >>> sandbox.close()
    """
    words = " ".join(map(shlex.quote, names))
    probe = f'(for name in {words}; do command -v "$name" >/dev/null || echo "$name"; done)'
    return sandbox.run(probe, timeout).output.decode("utf-8", "replace").split()
