"""Rollouts as a trainer needs them: one row of tokens an episode, in the order in which they were asked for.

What becomes of an episode that did not end as it should:

==========================================  ===========================================================
it ran out of turns                         a row like any other, with the reward the environment gave
it ran out of tokens (budget or context)    the same; its row ends with the last action that was executed
a completion of it was an empty command     the same; the one token that ended the completion is trained on
its environment or its engine broke         not scored: no gradient, no part in its group's baseline
nothing was sampled (no reset, a prompt     not scored; a placeholder row of one masked token
that fills the context)
==========================================  ===========================================================

A batch in which nothing is scored trains nothing: its gradient is zero, and a warning tells the first reason.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from obsspec_gym.agents.policy import Policy
from obsspec_gym.agents.world_model.base import WorldModel
from obsspec_gym.envs.tasks.task import Suite
from obsspec_gym.speculation.collector import Collection, collect
from obsspec_gym.speculation.metrics import measure
from obsspec_gym.speculation.selector import Selector
from obsspec_gym.speculation.slot import Episode
from obsspec_gym.speculation.trajectory import Trajectory
from obsspec_gym.types import EpisodeId, TokenIds

logger = logging.getLogger(__name__)

_MEASURES = (
    "turns",
    "solved",
    "agent_latency",
    "batch_latency",
    "throughput",
    "generation_tool_ratio",
    "match_rate",
    "time_weighted_match_rate",
    "hit_rate",
    "hidden_seconds",
    "pipeline_efficiency",
    "discarded_tokens",
)


@dataclass(frozen=True, slots=True)
class Row:
    """One episode as a training example.

    Attributes:
        prompt_ids: The tokens before the first action; at least one.
        completion_ids: The tokens of all turns, exactly as the policy was conditioned on them; at least one.
        env_mask: For each of ``completion_ids``: 1 where the policy sampled it and is trained on it, else 0.
        logprobs: For each of ``completion_ids``: the logprob it was sampled with; 0.0 for the environment's tokens.
        scored: Whether the episode takes part in training.
        trajectory: The episode.
    """

    prompt_ids: TokenIds
    completion_ids: TokenIds
    env_mask: tuple[int, ...]
    logprobs: tuple[float, ...]
    scored: bool
    trajectory: Trajectory

    @classmethod
    def of(cls, trajectory: Trajectory, pad_token_id: int, *, mask_truncated: bool = False) -> Row:
        """The row of an episode.

        Args:
            trajectory: The episode.
            pad_token_id: Stands where an episode has no tokens.
            mask_truncated: Whether nothing is learnt from truncated episodes (they still count in the baseline).
        """
        scored = not trajectory.broken and 1 in trajectory.env_mask
        masked = not scored or (mask_truncated and trajectory.truncated)
        completion_ids = trajectory.completion_ids or (pad_token_id,)
        return cls(
            prompt_ids=trajectory.prompt_ids or (pad_token_id,),
            completion_ids=completion_ids,
            env_mask=(0,) * len(completion_ids) if masked else trajectory.env_mask,
            logprobs=trajectory.logprobs or (0.0,),
            scored=scored,
            trajectory=trajectory,
        )


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """The rows of one generation step.

    Attributes:
        rows: One an episode, in the order of the episodes.
        collection: Where they come from.
    """

    rows: tuple[Row, ...]
    collection: Collection

    def measures(self) -> dict[str, float]:
        """What is worth logging at every step: measures as defined in ``metrics``, as far as there was something
        to measure, and which fractions of the episodes were truncated and not scored."""
        measured = measure(self.collection).to_json()
        logged = {name: float(measured[name]) for name in _MEASURES if measured[name] is not None}
        logged["truncated"] = sum(row.trajectory.truncated for row in self.rows) / len(self.rows)
        logged["unscored"] = sum(not row.scored for row in self.rows) / len(self.rows)
        return logged


class Rollouts:
    """Plays batches of episodes in environments, on an event loop that lives as long as the batch.

    Args:
        policy: Chooses actions.
        environments: What :func:`~obsspec_gym.speculation.collector.collect` takes, and the caller's; or a function
            that makes it, which is called when it is first needed: then it is this object's, and closed with it.
        world_model: Predicts observations; ``None`` for none. The caller's.
        selector: How far ahead to speculate.
        pad_token_id: Stands where an episode has no tokens.
        mask_truncated: Whether nothing is learnt from truncated episodes.
    """

    def __init__(
        self,
        policy: Policy,
        environments: Any | Callable[[], Any],
        world_model: WorldModel | None = None,
        selector: Selector | None = None,
        *,
        pad_token_id: int,
        mask_truncated: bool = False,
    ) -> None:
        self._policy = policy
        self._world_model = world_model
        self._selector = selector
        self._pad_token_id = pad_token_id
        self._mask_truncated = mask_truncated
        self._make = environments if callable(environments) else None
        self._environments = None if callable(environments) else environments
        self._finalizer: weakref.finalize[..., Any] | None = None

    def play(self, episodes: Sequence[Episode], *, run_seed: int, policy_step: int) -> RolloutBatch:
        """Plays episodes.

        Args:
            episodes: What to play; ids must be distinct.
            run_seed: With task, sample and turn it determines every completion.
            policy_step: Optimiser steps the policy's weights have had.

        Raises:
            InvalidArgumentError: Before anything is started: two episodes with the same id.
        """
        try:
            collection = _outside_any_loop(
                lambda: collect(
                    self._open(),
                    episodes,
                    self._policy,
                    self._world_model,
                    self._selector,
                    run_seed=run_seed,
                    policy_step=policy_step,
                )
            )
        except BaseException:
            self.close()  # an environment may be in the middle of a step: the next batch gets new ones
            raise
        rows = tuple(
            Row.of(trajectory, self._pad_token_id, mask_truncated=self._mask_truncated)
            for trajectory in collection.trajectories
        )
        _report_unscored(rows)
        return RolloutBatch(rows, collection)

    def close(self) -> None:
        """Closes the environments that are its own. Idempotent; :meth:`play` makes new ones."""
        if self._finalizer is not None:
            self._finalizer()
            self._finalizer, self._environments = None, None

    def _open(self) -> Any:
        if self._environments is None and self._make is not None:
            self._environments = self._make()
            self._finalizer = weakref.finalize(self, _close_all, self._environments)
        return self._environments


def name_episodes(tasks: Sequence[Any], suite: Suite | None, before: Sequence[str] = ()) -> list[Episode]:
    """Episodes for the tasks of a batch, such that every one has a name of its own.

    The sample index counts how often a task came before in the whole batch, over all processes: which rank has a row
    never changes what is sampled for it.

    Args:
        tasks: What to play: indices of the suite; without a suite, whatever the environment's ``reset`` takes as
            option ``task``.
        suite: Where the tasks come from.
        before: The names of the tasks that earlier ranks play.
    """
    seen = Counter(before)
    episodes = []
    for task in tasks:
        name = task_name(task, suite)
        sample = seen[name]
        seen[name] += 1
        options = {"task": task if suite is None else suite.task(task), "sample": sample}
        episodes.append(Episode(EpisodeId(name, sample), options=options))
    return episodes


def task_name(task: Any, suite: Suite | None) -> str:
    """What seeds and groups know a task by."""
    return str(task) if suite is None else suite.task(task).id


def _close_all(environments: Any) -> None:
    for env in environments if isinstance(environments, Sequence) else [environments]:
        env.close()


def _report_unscored(rows: Sequence[Row]) -> None:
    lost = [row.trajectory for row in rows if not row.scored]
    if lost:
        consequence = "this batch trains nothing" if len(lost) == len(rows) else "they are left out"
        logger.warning(
            "%d of %d episodes cannot be scored, %s; the first (%s): %s",
            len(lost),
            len(rows),
            consequence,
            lost[0].episode.task_id,
            lost[0].reason,
        )


def _outside_any_loop(function: Callable[[], Collection]) -> Collection:
    """Calls it where it can run an event loop of its own: in a notebook the caller's thread has one running."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return function()
    with ThreadPoolExecutor(1, thread_name_prefix="obsspec-rollouts") as thread:
        return thread.submit(function).result()
