"""Sandboxes that may have an image as their machine: made by scripts as root, then used by an account of its own."""

from __future__ import annotations

import shlex
from abc import abstractmethod
from collections.abc import Iterable, Mapping

from obsspec_gym.envs.sandbox.base import CommandResult
from obsspec_gym.envs.sandbox.checks import check_environment
from obsspec_gym.envs.sandbox.image_root import Account, ImageRoot
from obsspec_gym.envs.sandbox.layers import Resources
from obsspec_gym.envs.sandbox.persistent import PersistentSandbox
from obsspec_gym.errors import InvalidArgumentError

HOME = "/home/agent"
"""The agent's home, unless its image says otherwise."""

_READ_ONLY = frozenset({"BASHOPTS", "BASH_VERSINFO", "EUID", "PPID", "SHELLOPTS", "UID"})


class ImagedSandbox(PersistentSandbox):
    """What sandboxes share whose agent may be an account of an image.

    Args:
        image: Who the agent is in the image; ``None`` for a sandbox without one.
        env: With an image, what the agent's commands find in their environment, besides what they always find.
        resources: As for :class:`~obsspec_gym.envs.sandbox.persistent.PersistentSandbox`.
    """

    needs = "image"
    """The argument without which there is no image."""

    def __init__(
        self, image: ImageRoot | None, env: Mapping[str, str] | None, resources: Resources | None = None
    ) -> None:
        check_environment(env or {})
        super().__init__(resources)
        self._image = image
        self._env = dict(env or {})
        self._account: Account | None = None

    @property
    def workdir(self) -> str:
        """The agent's first working directory, as seen inside; its home, unless it was given."""
        return (self._image.workdir if self._image else None) or self.home

    @property
    def home(self) -> str:
        """The agent's HOME; with an image, as known once the agent's shell has started."""
        return self._account.home if self._account else HOME

    def provision(
        self,
        script: str,
        files: Mapping[str, str | bytes] | None = None,
        env: Mapping[str, str] | None = None,
        *,
        cwd: str = "/",
        timeout: float = 600.0,
    ) -> CommandResult:
        """Runs a script as root in a clean process of its own, to make the machine that the agent then finds.

        For sandboxes with an image, before the agent's first command. It may write everywhere; processes it leaves
        are ended. It sees as little of the supervisor, this machine and the network as the agent.

        Args:
            script: Bash.
            files: Relative path to content: they lie under ``$BUILD``, read-only, and nowhere afterwards.
            env: Added to the clean environment.
            cwd: Where it starts.
            timeout: Seconds, after which it is stopped.

        Returns:
            What it did; an exit status that is not 0 is not an error here.

        Raises:
            InvalidArgumentError: If the sandbox has no image, or for an argument that is none.
            SandboxError: If the sandbox broke.
            ClosedError: If it is closed.
        """
        if self._image is None:
            raise InvalidArgumentError(f"provision needs a sandbox with an image: give {self.needs}")
        with self._alone():
            self._account, self._entered, self._cwd = None, False, ""
            return self._run_aside(script, files or {}, env or {}, "BUILD", timeout, cwd)

    @abstractmethod
    def _agent_prefix(self, image: ImageRoot, account: Account) -> str:
        """What starts a shell of the agent's, for :meth:`_enter`."""

    @abstractmethod
    def _accounts(self, image: ImageRoot) -> str:
        """Bash with which the supervisor prints what :meth:`ImageRoot.account` reads."""

    def _run_aside(
        self,
        script: str,
        files: Mapping[str, str | bytes],
        env: Mapping[str, str],
        variable: str,
        timeout: float,
        cwd: str | None = None,
    ) -> CommandResult:
        if self._image is not None:
            env = {"USER": "root", "LOGNAME": "root", **env}
            if variable == "VERIFIER":
                with self._alone():
                    self._seal()
                # By the script, not for the shell that runs it: that is never looked for where an image says.
                script = _exports(self._env.keys() - {*env, variable}, self._env) + script
        return super()._run_aside(script, files, env, variable, timeout, cwd)

    def _enter_agent(self) -> None:
        """Starts the agent's shell; with an image, as the user that the image has under that name."""
        if self._image is None:
            super()._enter_agent()
            return
        self._seal()
        account = self._known(self._image)
        environment = {"HOME": account.home, "PWD": self._cwd, "USER": account.name, "LOGNAME": account.name}
        self._enter(self._agent_prefix(self._image, account), {**environment, **self._env})
        self._entered = True

    def _seal(self) -> None:
        """Has the supervisor note how the machine was built; does nothing the second time."""
        if seal := self._started().seal:
            self._supervise(seal)

    def _known(self, image: ImageRoot) -> Account:
        """The agent's account in the image."""
        if self._account is None:
            self._account = image.account(self._supervise(self._accounts(image)))
        self._cwd = self._cwd or self.workdir
        return self._account


def _exports(names: Iterable[str], values: Mapping[str, str]) -> str:
    """Bash that sets variables for what a script runs."""
    return "".join(f"export {name}={shlex.quote(values[name])}\n" for name in sorted(set(names) - _READ_ONLY))
