"""Everything of TRL that is experimental or private, in one place.

What is relied on, for the versions of :data:`TESTED_TRL`:

- ``rollout_func(prompts, trainer)`` replaces generation; it returns token ids, logprobs and ``env_mask`` (which TRL
  calls ``tool_mask`` further on). Its other keys are added to the rows and so reach every reward function.
- Prompts arrive repeated ``num_generations`` times; the dataset's other columns arrive only in
  ``_generate_and_score_completions``.
- ``_calculate_rewards`` returns the rewards of all processes, ``[row, reward function]``; a row that is NaN throughout
  is left out of its group's baseline and gets advantage 0.
- ``eos_token_ids`` decides which completions count as clipped.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
import trl
from accelerate.utils import gather_object
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from obsspec_gym.training.rollout import RolloutBatch

TESTED_TRL = "1.16"
"""The minor version of TRL that the hooks below were written and tested for."""


class RolloutTrainer(GRPOTrainer):
    """A ``GRPOTrainer`` whose completions come from :meth:`roll_out`.

    The constructor takes what ``GRPOTrainer``'s takes, without ``rollout_func``, ``tools`` and
    ``environment_factory``.
    """

    args: GRPOConfig
    model: PreTrainedModel
    processing_class: PreTrainedTokenizerBase

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if not trl.__version__.startswith(f"{TESTED_TRL}."):
            warnings.warn(
                f"the trainer was tested with TRL {TESTED_TRL} and uses parts of it that may change; this is TRL "
                f"{trl.__version__}",
                stacklevel=3,
            )
        super().__init__(*args, **kwargs)
        self.rollout_func = self._rollout_func
        self._batch_rows: Sequence[dict[str, Any]] = ()

    def roll_out(self, rows: Sequence[dict[str, Any]]) -> RolloutBatch:
        """Plays one episode for each row of this process, in their order.

        Args:
            rows: Rows of the dataset, repeated for the members of each group.
        """
        raise NotImplementedError

    def stop_at(self, token_ids: Sequence[int]) -> None:
        """Tells TRL which tokens end a completion, besides the tokenizer's own."""
        self.eos_token_ids = list(dict.fromkeys([*self.eos_token_ids, *token_ids]))

    def gather_names(self, names: Sequence[str]) -> tuple[list[str], list[str]]:
        """The names of the rows of earlier ranks, and of all ranks. Called on every rank, at every step."""
        if self.accelerator.num_processes == 1:
            return [], list(names)
        everyone: list[str] = gather_object(list(names))
        return everyone[: self.accelerator.process_index * len(names)], everyone

    @property
    def accumulated(self) -> int:
        """Backward passes since the last optimiser step."""
        return int(self._step % self.args.gradient_accumulation_steps)

    def _rollout_func(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        batch = self.roll_out(self._batch_rows)
        return {
            "prompt_ids": [list(row.prompt_ids) for row in batch.rows],
            "completion_ids": [list(row.completion_ids) for row in batch.rows],
            "logprobs": [list(row.logprobs) for row in batch.rows],
            "env_mask": [list(row.env_mask) for row in batch.rows],
            "scored": [row.scored for row in batch.rows],
            "trajectory": [row.trajectory for row in batch.rows],
            "measures": batch.measures(),
        }

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        self._batch_rows = inputs
        try:
            outputs: dict[str, Any] = super()._generate_and_score_completions(inputs)
        finally:
            self._batch_rows = ()
        return outputs

    def _calculate_rewards(
        self, inputs: list[dict[str, Any]], prompts: Any, completions: Any, completion_ids_list: Any
    ) -> torch.Tensor:
        rewards: torch.Tensor = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        scored = torch.tensor([row["scored"] for row in inputs], device=rewards.device)
        rewards[~self.accelerator.gather(scored)] = torch.nan
        return rewards


def environment_reward(*, trajectory: Sequence[Any], measures: Sequence[Any], log_metric: Any, **_: Any) -> list[float]:
    """The reward function of every run: what the environments gave. It also logs the rollouts' measures."""
    for name, value in measures[0].items():
        log_metric(f"rollout/{name}", value)
    return [episode.reward for episode in trajectory]
