"""A pytest plugin that runs Gymnasium's own vector tests with this wrapper in place of its vector environments.

In a checkout of Gymnasium (the tag of the installed version), with this file's folder on the path::

    PYTHONPATH=/path/to/obsspec_gym/tests/conformance python -m pytest -p gymnasium_suite tests/vector

Every ``SyncVectorEnv(...)`` and ``AsyncVectorEnv(...)`` those tests make is then one that speculates: its policy
answers with samples of the action space, its world model predicts that nothing changes. What the wrapper adds to
``infos`` is taken out again, since those tests compare ``infos`` as a whole. Tests of what only the wrapped class has
(``step_async``, ``env_fns``) reach through to it.
"""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import gymnasium
import gymnasium.vector
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from obsspec_gym import FixedSelector, History, ObsSpecVectorEnv


class _Substituted(ObsSpecVectorEnv):
    """The wrapper, made like the class it wraps."""

    made: ClassVar[type[Any]]
    options: ClassVar[dict[str, Any]] = {}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        bare = self.made(*args, **(self.options | kwargs))
        space = copy.deepcopy(bare.single_action_space)

        def policy(history: History, seed: int) -> Any:
            return space.sample()

        super().__init__(bare, policy, lambda history, action: history.value, FixedSelector(2, 1))

    def reset(self, **kwargs: Any) -> Any:
        observations, infos = super().reset(**kwargs)
        return observations, _without_handles(infos)

    def step(self, actions: Any) -> Any:
        *batch, infos = super().step(actions)
        return (*batch, _without_handles(infos))

    def __getattr__(self, name: str) -> Any:
        if name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)


def _without_handles(infos: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in infos.items() if not key.endswith("next_action")}


class SubstitutedSync(_Substituted):
    """In place of ``SyncVectorEnv``."""

    made = SyncVectorEnv


class SubstitutedAsync(_Substituted):
    """In place of ``AsyncVectorEnv``."""

    made = AsyncVectorEnv
    options: ClassVar[dict[str, Any]] = {"context": "spawn"}  # a process with threads must not fork


gymnasium.vector.SyncVectorEnv = SubstitutedSync  # type: ignore[misc,assignment]
gymnasium.vector.AsyncVectorEnv = SubstitutedAsync  # type: ignore[misc,assignment]
