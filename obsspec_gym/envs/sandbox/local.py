"""A sandbox that is none: the same shell, without isolation."""

from __future__ import annotations

import shlex
import tempfile
import warnings

from obsspec_gym.envs.sandbox.files import EPOCH
from obsspec_gym.envs.sandbox.layers import STRAY_SECONDS, Layers, Resources
from obsspec_gym.envs.sandbox.supervised import SupervisedSandbox

_STRAY_STEPS = int(STRAY_SECONDS / 0.05)
_END_STRAYS = (
    f"for ((step = 0; step < {_STRAY_STEPS}; step++)); do "
    "found=$(grep -lszxF {mark} /proc/[0-9]*/environ); [[ $found ]] || break; "
    "kill -KILL ${{found//[!0-9$'\\n']/}} 2>/dev/null; sleep 0.05; done"
)
"""Bash that ends every process with an entry in its environment."""


class NoIsolationWarning(UserWarning):
    """Commands run with the rights of this process, on its files and its network."""


class LocalSandbox(SupervisedSandbox):
    """Commands run as this user, on this machine: for trusted agents and for machines without namespaces.

    Only the environment is clean, HOME is a fresh temporary directory, and everything is ended and removed at the
    end. Programs that clear their environment and leave the shell's process tree are not found again. A fork has a
    home of its own under another name: what names the old one (an absolute symbolic link, say) still means the old
    one, and ``/tmp`` is the machine's for both. An agent that means to can import this package, whose generated tasks'
    answers are functions of their index.

    Warns:
        NoIsolationWarning: At every start, which Python shows once.
    """

    def __init__(self) -> None:
        super().__init__()
        self._home = ""

    @property
    def workdir(self) -> str:
        """The agent's home and first working directory; empty before the start."""
        return self._home

    @property
    def home(self) -> str:
        """The same."""
        return self._home

    def _build(self, resources: Resources) -> Layers:
        warnings.warn(
            "a local sandbox isolates nothing: commands run with your rights, on your files and your network",
            NoIsolationWarning,
            stacklevel=3,
        )
        directory = resources.directory = tempfile.mkdtemp(prefix="obsspec-")
        self._home = f"{directory}/home"
        resources.mark = f"HOME={self._home}".encode()
        # The supervisor tidies up as well, for the case that this process is killed.
        tidy = f"{_END_STRAYS.format(mark=shlex.quote(f'HOME={self._home}'))}; rm -rf {shlex.quote(directory)}"
        return Layers(
            outer=(),
            prepare=f"mkdir -m 755 {self._home} && touch -d @{EPOCH} {self._home} && trap {shlex.quote(tidy)} EXIT",
            inner="setsid",
            judging="setsid",
            home=self._home,
            verifier=f"{directory}/verifier",
            limits="ulimit -c 0",
            base=directory,
            kept=("home",),
        )

    def _twin(self) -> LocalSandbox:
        return LocalSandbox()
