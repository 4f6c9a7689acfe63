"""Suites as the datasets that trainers take."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from datasets import Dataset

from obsspec_gym.envs.arguments import read_suite
from obsspec_gym.envs.tasks.task import Suite


def task_dataset(suite: str | Suite, indices: Iterable[int]) -> Any:
    """A dataset of tasks.

    Args:
        suite: The suite, or its name.
        indices: Which of its tasks; of generated suites those from 10,000 on, since those below are for evaluation.

    Returns:
        A ``datasets.Dataset`` with the columns ``prompt`` (the instruction, for logs) and ``task`` (the index).

    Raises:
        InvalidArgumentError: If there is no such suite, or no such task in it.
    """
    source = read_suite(suite)
    chosen = list(indices)
    return Dataset.from_dict({"prompt": [source.task(index).instruction for index in chosen], "task": chosen})
