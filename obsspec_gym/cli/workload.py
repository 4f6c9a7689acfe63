"""Which tasks, in which environments: checked as a whole before anything is started."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from obsspec_gym.envs.latency import LatencyProfile
from obsspec_gym.envs.sandbox import KINDS
from obsspec_gym.envs.tasks import EVALUATION, Suite, Task, get_suite
from obsspec_gym.envs.vector import TerminalVectorEnv
from obsspec_gym.errors import InvalidArgumentError, SandboxUnavailableError
from obsspec_gym.speculation.slot import Episode
from obsspec_gym.types import EpisodeId


@dataclass(frozen=True)
class Workload:
    """Episodes in groups, and the environments they run in.

    Attributes:
        suite: Where tasks come from.
        episodes: How many episodes.
        group: How many of them share a task.
        num_envs: How many run at once.
        sandbox: Kind of sandbox.
        latency: Delay added to every command.
        seed: Which tasks of the suite, and which completions.
    """

    suite: Suite
    episodes: int
    group: int
    num_envs: int
    sandbox: str
    latency: LatencyProfile
    seed: int

    @classmethod
    def of(
        cls, suite: str, *, episodes: int, group: int, num_envs: int, sandbox: str, latency: str, seed: int
    ) -> Workload:
        """Reads what was written on the command line.

        Raises:
            InvalidArgumentError: If a value is not what is expected.
            SandboxUnavailableError: If this machine cannot provide the sandbox.
        """
        if sandbox not in KINDS:
            raise InvalidArgumentError(f"sandbox must be one of {', '.join(KINDS)}, got {sandbox!r}")
        for name, value in (("episodes", episodes), ("group", group), ("envs", num_envs)):
            if value < 1:
                raise InvalidArgumentError(f"{name} must be >= 1, got {value}")
        workload = cls(get_suite(suite), episodes, group, num_envs, sandbox, LatencyProfile.parse(latency), seed)
        _require_sandbox(sandbox)
        return workload

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        """One for each group, from the indices that nothing is ever trained on, starting where the seed says."""
        count = -(-self.episodes // self.group)
        known = min(len(EVALUATION), len(self.suite))
        if count > known:
            raise InvalidArgumentError(
                f"suite {self.suite.name!r} has {known} tasks for evaluation, {count} are needed"
            )
        return tuple(self.suite.task((self.seed * count + index) % known) for index in range(count))

    @cached_property
    def plan(self) -> tuple[Episode, ...]:
        """The episodes, group by group."""
        return tuple(
            Episode(EpisodeId(task.id, sample), options={"task": task, "sample": sample})
            for task in self.tasks
            for sample in range(self.group)
        )[: self.episodes]

    def make_envs(self) -> TerminalVectorEnv:
        """Environments for one run; nothing is started before the first reset."""
        count = min(self.num_envs, self.episodes)
        return TerminalVectorEnv(count, suite=self.suite, sandbox=self.sandbox, latency=self.latency)


def _require_sandbox(kind: str) -> None:
    """Tells now what the first reset would be refused with."""
    if kind != "bubblewrap":
        return
    from obsspec_gym.envs.sandbox.bubblewrap import bubblewrap_available

    reason = bubblewrap_available()
    if reason is not None:
        raise SandboxUnavailableError(reason)
