"""Terminals side by side."""

from __future__ import annotations

import functools
from concurrent.futures import Future
from typing import Any

from gymnasium.vector import AutoresetMode

from obsspec_gym.envs.command import check_command
from obsspec_gym.envs.listener import OnOutput
from obsspec_gym.envs.terminal import TerminalEnv
from obsspec_gym.envs.threads import ThreadVectorEnv
from obsspec_gym.envs.worker import EnvWorker, StepResult
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.types import Action


class TerminalVectorEnv(ThreadVectorEnv):
    """What ``gym.make_vec("obsspec_gym/Terminal-v0", num_envs=8)`` gives: terminals, one thread each.

    Args:
        num_envs: How many.
        max_episode_steps: Actions after which an episode is truncated; the smaller of this and ``max_turns`` counts.
        autoreset_mode: As in :class:`ThreadVectorEnv`.
        **terminal: Arguments of each :class:`~obsspec_gym.envs.terminal.TerminalEnv`.

    Raises:
        InvalidArgumentError: If an argument is not what is described here or there.

    Example:
        >>> envs = TerminalVectorEnv(2, suite="basics")
        >>> instructions, infos = envs.reset(seed=0)
        >>> observations, rewards, terminated, truncated, infos = envs.step(["echo a", "echo b"])
        >>> [observation.splitlines()[0] for observation in observations]
        ['a', 'b']
        >>> envs.send(["echo c"], env_ids=[1])
        >>> [(env_id, result.info["exit_code"]) for env_id, result in envs.recv()]
        [(1, 0)]
        >>> envs.close()
    """

    def __init__(
        self,
        num_envs: int = 1,
        *,
        max_episode_steps: int | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        **terminal: Any,
    ) -> None:
        if not isinstance(num_envs, int) or num_envs < 1:
            raise InvalidArgumentError(f"num_envs must be an integer >= 1, got {num_envs!r}")
        limits = [limit for limit in (max_episode_steps, terminal.pop("max_turns", None)) if limit is not None]
        make = functools.partial(TerminalEnv, max_turns=min(limits, default=None), **terminal)
        super().__init__([make] * num_envs, autoreset_mode=autoreset_mode)

    def submit(self, env_id: int, action: Action, *, on_output: OnOutput | None = None) -> Future[StepResult]:
        """Starts one step of one terminal; see :meth:`ThreadVectorEnv.submit`.

        Args:
            env_id: Which.
            action: A bash command, ``submit`` or ``submit TEXT``.
            on_output: Is told what the command prints while it runs, on the terminal's own thread, before the future
                is done. Nothing else changes.
        """
        worker = self._worker(env_id)
        self._check(worker, action)
        return worker.call(functools.partial(_step, worker, action, on_output))

    def _check_action(self, action: Action) -> None:
        check_command(action)


def _step(worker: EnvWorker, action: Action, on_output: OnOutput | None) -> StepResult:
    terminal = worker.env
    assert isinstance(terminal, TerminalEnv)
    with terminal.listening(on_output):
        return worker.step(action)
