"""A command under way in a sandbox, for the sandbox and for whoever reads its output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from obsspec_gym.envs.execution import Execution
from obsspec_gym.envs.sandbox.base import CommandResult


@dataclass(eq=False)
class Command:
    """A command under way.

    Attributes:
        execution: Its output and its end.
        began: When, in seconds of the monotonic clock.
        restarted: Whether the shell was started anew for it.
        result: What it did, once it has ended.
    """

    execution: Execution
    began: float
    restarted: bool = False
    result: CommandResult | None = None


@dataclass(frozen=True, eq=False)
class Streamed:
    """A command and what its sandbox can do with it; see :class:`obsspec_gym.envs.sandbox.stream.StreamedCommand`."""

    command: Command
    reading: Callable[[Command], bytes | None]
    stopping: Callable[[Command], None]
    abandoning: Callable[[Command], None]

    @property
    def result(self) -> CommandResult | None:
        """What it did, once it has ended."""
        return self.command.result

    def read(self) -> bytes | None:
        """The next bytes it prints; None when it has ended."""
        return self.reading(self.command)

    def stop(self) -> None:
        """Stops it as its timeout would."""
        self.stopping(self.command)

    def abandon(self) -> None:
        """Stops it if that is still needed."""
        self.abandoning(self.command)
