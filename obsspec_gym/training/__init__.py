"""What is learnt from rollouts; the only room that imports TRL.

Public names are imported from their modules when they are first used: importing TRL takes seconds.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from obsspec_gym.training.checkpoints import last_checkpoint
    from obsspec_gym.training.cotraining import WorldModelCoTrainingCallback
    from obsspec_gym.training.cotraining_settings import CoTraining
    from obsspec_gym.training.dataset import task_dataset
    from obsspec_gym.training.grpo import ObsSpecGRPOTrainer
    from obsspec_gym.training.rollout import RolloutBatch, Rollouts, Row

__all__ = [
    "CoTraining",
    "ObsSpecGRPOTrainer",
    "RolloutBatch",
    "Rollouts",
    "Row",
    "WorldModelCoTrainingCallback",
    "last_checkpoint",
    "task_dataset",
]

_HOME = {
    "CoTraining": "cotraining_settings",
    "ObsSpecGRPOTrainer": "grpo",
    "RolloutBatch": "rollout",
    "Rollouts": "rollout",
    "Row": "rollout",
    "WorldModelCoTrainingCallback": "cotraining",
    "last_checkpoint": "checkpoints",
    "task_dataset": "dataset",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
