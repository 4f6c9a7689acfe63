"""What users may write for arguments of environments, and the one sentence they read where it is something else.

All of these raise :class:`~obsspec_gym.errors.InvalidArgumentError` and start nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

import numpy as np
from gymnasium.vector import AutoresetMode

from obsspec_gym.envs.latency import LatencyProfile
from obsspec_gym.envs.machine import AnySandbox, MachineFactory, Machines
from obsspec_gym.envs.tasks import get_suite
from obsspec_gym.envs.tasks.task import Suite, Task
from obsspec_gym.errors import InvalidArgumentError


def read_suite(suite: object) -> Suite:
    """A suite, from itself or its name."""
    if isinstance(suite, str):
        return get_suite(suite)
    if isinstance(suite, Suite):
        return suite
    raise InvalidArgumentError(f"suite must be a suite's name or a Suite, got {type(suite).__name__}")


def read_task(suite: Suite, task: object) -> Task:
    """A task, from itself or its index in the suite."""
    if isinstance(task, Task):
        return task
    if is_integer(task):
        return suite.task(int(task))
    raise InvalidArgumentError(f"task must be a Task or an index of the suite, got {type(task).__name__}")


def read_sandbox(sandbox: object, task: Task | None = None) -> MachineFactory:
    """What makes a task's sandbox, from the name of a kind, what makes those of one kind, or what makes any.

    Args:
        sandbox: What the user wrote.
        task: The task of every episode, where that is known: what cannot be its machine is refused now.
    """
    if isinstance(sandbox, str):
        sandbox = Machines(sandbox)
    elif not isinstance(sandbox, Machines):
        if not callable(sandbox):
            raise InvalidArgumentError(
                f"sandbox must be the name of a kind, Machines or a callable, got {type(sandbox).__name__}"
            )
        sandbox = AnySandbox(sandbox)
        if task is not None:
            sandbox.check(task)
    return sandbox


def read_latency(latency: object) -> LatencyProfile:
    """A latency profile, from itself or its text form."""
    if isinstance(latency, LatencyProfile):
        return latency
    if latency is None or isinstance(latency, str):
        return LatencyProfile.parse(latency or "none")
    raise InvalidArgumentError(f"latency must be {LatencyProfile.GRAMMAR}, got {type(latency).__name__}")


def is_integer(value: object) -> TypeGuard[int]:
    """Whether it is an integer of Python or NumPy, and not a bool."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def read_autoreset_mode(mode: object) -> AutoresetMode:
    """An autoreset mode, from itself or its value."""
    try:
        return AutoresetMode(mode)
    except ValueError:
        names = ", ".join(repr(known.value) for known in AutoresetMode)
        raise InvalidArgumentError(f"autoreset_mode must be one of {names}, got {mode!r}") from None


def read_seeds(seed: int | Sequence[int | None] | None, num_envs: int) -> Sequence[int | None]:
    """A seed for each environment, from these or the first one's; the others then count on from it."""
    if seed is None:
        return [None] * num_envs
    if is_integer(seed):
        return [int(seed) + i for i in range(num_envs)]
    if not isinstance(seed, Sequence | np.ndarray) or len(seed) != num_envs:
        raise InvalidArgumentError(f"seed must be an integer or one for each of {num_envs} environments, got {seed!r}")
    return seed


def read_reset_mask(mask: object, num_envs: int) -> list[int]:
    """Which environments a mask of Gymnasium's ``reset_mask`` option names; all of them without one."""
    if mask is None:
        return list(range(num_envs))
    if not (isinstance(mask, np.ndarray) and mask.dtype == np.bool_ and mask.shape == (num_envs,) and mask.any()):
        raise InvalidArgumentError(
            f"reset_mask must be a boolean array of shape {(num_envs,)} with a True in it, got {mask!r}"
        )
    return [int(env_id) for env_id in np.flatnonzero(mask)]
