"""A task: what an agent is asked to do in a terminal, how its scene is set and how its end is judged."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, runtime_checkable

Expert: TypeAlias = Generator[str, str, None]
"""A scripted expert: yields commands, is sent each observation, and yields ``submit`` or ``submit TEXT`` last."""


@dataclass(frozen=True)
class Image:
    """A machine of a task's own, made over the base image.

    Attributes:
        build: Bash run once as root, without a network, before anything else; what it makes of the file system is
            where the task begins. Empty for none.
        files: Path to content, found by ``build`` under ``$BUILD`` and nowhere afterwards.
        user: Whom the agent is: a name or a number, with ``:group`` or without; ``root`` owns everything.
        workdir: The agent's first working directory.
        env: What the agent's commands find in their environment, besides what they always find.
        timeout: Seconds ``build`` may take.
        cpus: How many CPUs the machine has; ``None`` for as many as it is given.
        memory_mib: Its memory, in MiB; ``None`` likewise.
        disk_mib: Its disk, in MiB; ``None`` likewise.
    """

    build: str = ""
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    user: str = "root"
    workdir: str = "/root"
    env: Mapping[str, str] = field(default_factory=dict)
    timeout: float = 600.0
    cpus: float | None = None
    memory_mib: int | None = None
    disk_mib: int | None = None


@dataclass(frozen=True)
class Task:
    """One task.

    Attributes:
        id: Identifies the task everywhere; equal ids mean equal tasks.
        instruction: What the agent reads at reset.
        files: Path (relative to the working directory) to content, laid before the episode; a mode of 0o755 is set
            for contents that begin with ``#!``.
        setup: Bash run once in the fresh sandbox before the episode, unseen by the agent; empty for none.
        verifier: Bash run in a process of its own after the episode, in the working directory as the agent left
            it; exit status 0 is reward 1, anything else reward 0. The agent never sees it. What runs an agent's
            programs belongs in ``trial``, and an agent's files may be links: see
            :data:`~obsspec_gym.envs.tasks.family.OWN_FILES`. Empty where no script is needed, because ``answer`` and
            ``tried`` say everything: the reward is 1 if what was handed in is the one, where there is one, and what
            the trial printed is the other, where there is a trial.
        verifier_files: Files laid outside the agent's reach for the verifier only, under ``$VERIFIER``.
        answer: Where the task asks for an answer (``submit TEXT``), the expected text; a verifier finds what was
            handed in as ``$ANSWER``.
        requires: Programs that must be in the sandbox (checked with ``command -v``).
        max_turns: Actions after which the episode is truncated.
        timeout: Seconds a command may run.
        image: The machine the task needs, where it is not any sandbox.
        rewards: Files in which the verifier may write a reward, as absolute paths; the first that there is counts,
            a number or a JSON object, and the exit status only if there is none. Agents cannot write them before.
        verifier_timeout: Seconds the verifier may take.
        time_limit: Seconds all commands of an episode may take together, after which it is truncated; what the
            agent takes to think does not count, so that an episode does not depend on the speed of a model.
        trial: Bash run before the verifier, likewise, for running what the agent wrote: it finds neither
            ``verifier_files`` nor the answer. What it prints (of a lot, the first and last) the verifier finds as the
            file ``$VERIFIER/trial``; where it takes longer than ``verifier_timeout``, the reward is 0. Empty for none.
        trial_files: Files laid for the trial only, under ``$VERIFIER``.
        tried: What the trial has to print, byte for byte, where there is no verifier.
        gold: Bash that works out from the fresh scene what is expected; run before the episode, in a copy of the
            scene where there can be one. What it prints the verifier finds as the file ``$VERIFIER/gold``; a scene in
            which it fails or prints nothing is none. Empty for none.
        as_built: Whether the verifier finds programs and settings (``/usr``, ``/etc``, ``/bin``, ``/lib`` and their
            like) as they were before the agent's first command, where the sandbox can do that. Not for tasks in which
            an agent has to install or set up something there; without it, an agent that is root can have replaced
            what the verifier runs.
    """

    id: str
    instruction: str
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    setup: str = ""
    verifier: str = "false"
    verifier_files: Mapping[str, str | bytes] = field(default_factory=dict)
    answer: str | None = None
    requires: tuple[str, ...] = ()
    max_turns: int = 32
    timeout: float = 30.0
    image: Image | None = None
    rewards: tuple[str, ...] = ()
    verifier_timeout: float = 60.0
    time_limit: float | None = None
    trial: str = ""
    trial_files: Mapping[str, str | bytes] = field(default_factory=dict)
    tried: str = ""
    gold: str = ""
    as_built: bool = False


@runtime_checkable
class Suite(Protocol):
    """A source of tasks: seeded and, for generated families, unlimited."""

    @property
    def name(self) -> str:
        """What the suite is called on the command line."""
        ...

    def __len__(self) -> int:
        """How many tasks there are; ``sys.maxsize`` for generated ones."""
        ...

    def task(self, index: int) -> Task:
        """The ``index``-th task: a pure function of the suite and the index.

        Raises:
            InvalidArgumentError: If the index is out of range.
        """
        ...

    def expert(self, task: Task) -> Expert:
        """A scripted expert for a task of this suite.

        Raises:
            InvalidArgumentError: If the suite has none.
        """
        ...
