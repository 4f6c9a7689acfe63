"""Values as a space has them: what is predicted, observed and chosen is compared and read in one and the same form.

An environment gives a ``np.float32`` array where a world model predicts a list, a policy returns ``2`` where the batch
holds ``np.int64(2)``. A policy could tell them apart, so predictions are verified exactly
(:func:`~obsspec_gym.agents.history.same_observation`); and so that this costs no match, everything that enters a
history is first brought into the form its space gives it. It is copied as well: an environment may write its next
observation into the same memory.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from obsspec_gym.agents.history import History
from obsspec_gym.agents.policy import Policy, PolicyWrapper, as_policy
from obsspec_gym.agents.world_model.base import WorldModel
from obsspec_gym.spaces import TerminalText
from obsspec_gym.speculation.predictor import as_world_model
from obsspec_gym.types import Action, Completion, Prediction, Transition


@functools.singledispatch
def conform(space: gym.Space[Any], value: Any) -> Any:
    """A copy of a value in the form that the space's own samples have.

    Arrays get the space's dtype (a ``Discrete`` value becomes a NumPy scalar), containers the space's type and order of
    keys. A value that does not fit (another shape, a fraction for an integer, a missing key) is copied as it is: it
    will equal nothing the environment says. Bounds are not looked at. Text and spaces unknown here are left alone.

    Example:
        >>> space = spaces.Dict({"at": spaces.Box(0, 1, (2,), np.float32), "key": spaces.Discrete(3)})
        >>> conform(space, {"key": 2, "at": [0, 0.5]})
        {'at': array([0. , 0.5], dtype=float32), 'key': np.int64(2)}
        >>> conform(spaces.Discrete(3), 0.5)
        0.5
    """
    return value if isinstance(value, str) else copy.deepcopy(value)


@conform.register
def _(space: spaces.Discrete, value: Any) -> Any:
    assert space.dtype is not None
    if type(value) is space.dtype.type:
        return value  # immutable, and in its form already
    array = _array(space, value)
    return array[()] if isinstance(array, np.ndarray) else array


@conform.register
def _(space: spaces.Dict, value: Any) -> Any:
    if not isinstance(value, Mapping) or value.keys() != space.spaces.keys():
        return copy.deepcopy(value)
    return {key: conform(part, value[key]) for key, part in space.spaces.items()}


@conform.register(spaces.Tuple)
def _(space: spaces.Tuple[Any], value: Any) -> Any:
    if not _is_row(value) or len(value) != len(space.spaces):
        return copy.deepcopy(value)
    return tuple(conform(part, item) for part, item in zip(space.spaces, value, strict=True))


@conform.register
def _(space: spaces.Sequence, value: Any) -> Any:
    if space.stack or not _is_row(value):
        return copy.deepcopy(value)
    return tuple(conform(space.feature_space, item) for item in value)


def _is_row(value: Any) -> bool:
    """Whether a value is a row of values; a text is one value."""
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


@conform.register(spaces.Box)
@conform.register(spaces.MultiDiscrete)
@conform.register(spaces.MultiBinary)
def _array(space: gym.Space[Any], value: Any) -> Any:
    """An array of the space's dtype and shape, or a copy of the value where it cannot be one without a change."""
    assert space.dtype is not None
    if type(value) is np.ndarray and value.dtype == space.dtype and value.shape == space.shape:
        return value.copy()
    try:
        given = np.asarray(value)
        if given.dtype.kind not in "biuf" or given.shape != space.shape:
            return copy.deepcopy(value)
        with np.errstate(all="ignore"):
            array = given.astype(space.dtype, order="C")
    except (TypeError, ValueError, OverflowError):
        return copy.deepcopy(value)
    exact = space.dtype.kind in "fc" or np.array_equal(array, given)
    return array if exact else copy.deepcopy(value)


class ConformingPolicy(PolicyWrapper[Policy]):
    """A policy whose actions have the form of their space.

    Args:
        policy: Chooses them.
        space: Of one action.
    """

    def __init__(self, policy: Policy, space: gym.Space[Any]) -> None:
        super().__init__(policy)
        self._space = space

    def parse(self, completion: Completion) -> Action:
        """The policy's action, in its space's form."""
        return conform(self._space, super().parse(completion))


class ConformingWorldModel:
    """A world model whose observations have the form of their space.

    Args:
        world_model: Predicts them.
        space: Of one observation.
    """

    def __init__(self, world_model: WorldModel, space: gym.Space[Any]) -> None:
        self._world_model = world_model
        self._space = space

    async def predict(self, history: History, action: Action, n: int, partial: str = "") -> list[Prediction]:
        """The world model's predictions, their observations in the space's form."""
        predictions = await self._world_model.predict(history, action, n, partial)
        return [
            replace(each, observation=conform(self._space, each.observation)) if isinstance(each, Prediction) else each
            for each in predictions
        ]

    def observe(self, transition: Transition) -> None:
        """Passes it on."""
        self._world_model.observe(transition)

    def close(self) -> None:
        """Closes the world model."""
        self._world_model.close()


def conforming_policy(policy: Policy | Callable[[History, int], Any], space: gym.Space[Any]) -> Policy:
    """The policy, made to give actions in their space's form."""
    policy = as_policy(policy)
    return policy if _needs_no_form(space) else ConformingPolicy(policy, space)


def conforming_world_model(
    world_model: WorldModel | Callable[[History, Action], Any] | None, space: gym.Space[Any]
) -> WorldModel | None:
    """The world model, made to predict observations in their space's form."""
    if world_model is None:
        return None
    world_model = as_world_model(world_model)
    return world_model if _needs_no_form(space) else ConformingWorldModel(world_model, space)


def _needs_no_form(space: gym.Space[Any]) -> bool:
    """Whether a space's values need no form: text, and the plain ``Space`` that stands for an unknown one."""
    return isinstance(space, spaces.Text | TerminalText) or type(space) is gym.Space
