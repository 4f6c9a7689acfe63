"""Everything of TRL that is experimental or private, in one place.

What is relied on, for the versions of :data:`TESTED_TRL`:

- ``rollout_func(prompts, trainer)`` replaces generation; it returns token ids, logprobs and ``env_mask`` (which TRL
  calls ``tool_mask`` further on). Its other keys are added to the rows and so reach every reward function.
- Prompts arrive repeated ``num_generations`` times; the dataset's other columns arrive only in
  ``_generate_and_score_completions``.
- ``_calculate_rewards`` returns the rewards of all processes, ``[row, reward function]``; a row that is NaN throughout
  is left out of its group's baseline and gets advantage 0.
- ``eos_token_ids`` decides which completions count as clipped.
- ``_step`` counts backward passes, and ``_buffered_inputs`` holds the generation batch they go through; a resumed
  trainer would begin a new one, so both go into checkpoints.
- ``_get_train_sampler`` gives a ``RepeatSampler``, which shuffles with a generator that no checkpoint holds.
- ``_save_checkpoint`` writes into ``_get_output_dir``, and ``_load_optimizer_and_scheduler`` is called with the
  checkpoint to resume from, after the callbacks are there.
- ``_compute_loss`` takes tensors of ``[row]``, ``[row, 1]`` and ``[row, token]``, the latter as wide as
  ``completion_ids`` and padded at the end where ``completion_mask`` is 0.
- ``_get_per_token_logps_and_entropies`` takes prompts padded at their beginning, followed by completions padded at
  their end; a row with advantage 0 has no part in the loss, unless there is a KL term, an entropy bonus or an
  auxiliary loss.
- ``_metrics["train"]`` holds lists of values by name; their means are in the next entry of the log.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import trl
from accelerate.utils import gather_object
from torch.utils.data import Sampler
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.trainer import TRAINER_STATE_NAME
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from obsspec_gym.agents.world_model.cascade import Checkpointable
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.training import checkpoints
from obsspec_gym.training.passes import Computed, in_passes
from obsspec_gym.training.rollout import RolloutBatch

TESTED_TRL = "1.16"
"""The minor version of TRL that the hooks below were written and tested for."""

_OF_COMPLETIONS = {
    "completion_ids",
    "completion_mask",
    "tool_mask",
    "old_per_token_logps",
    "ref_per_token_logps",
    "sampling_per_token_logps",
    "importance_sampling_ratio",
}
"""What of a generation batch is ``[row, token]`` of completions, or can be."""


class RolloutTrainer(GRPOTrainer):
    """A ``GRPOTrainer`` whose completions come from :meth:`roll_out`, and whose checkpoints are whole and complete.

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
        self._learnt_from: torch.Tensor | None = None
        self._saving = False

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

    def learners(self) -> dict[str, Checkpointable]:
        """What learns beside the policy, by name: its state goes into checkpoints. Callbacks that have a state do."""
        return checkpoints.named(self.callback_handler.callbacks)

    def train(
        self, resume_from_checkpoint: str | bool | None = None, trial: Any = None, ignore_keys_for_eval: Any = None
    ) -> Any:
        """As ``Trainer.train``.

        Args:
            resume_from_checkpoint: A checkpoint, or ``True`` for the last whole one in ``output_dir``.
            trial: As there.
            ignore_keys_for_eval: As there.

        Raises:
            InvalidArgumentError: If the checkpoint is not whole, or none is.
        """
        if resume_from_checkpoint is True:
            last = checkpoints.last_checkpoint(str(self.args.output_dir))
            if last is None:
                raise InvalidArgumentError(f"there is no whole checkpoint in {self.args.output_dir}")
            resume_from_checkpoint = str(last)
        elif resume_from_checkpoint and not checkpoints.is_whole(Path(resume_from_checkpoint)):
            raise InvalidArgumentError(f"{resume_from_checkpoint} is not a whole checkpoint of this trainer")
        return super().train(resume_from_checkpoint or None, trial, ignore_keys_for_eval)

    @property
    def accumulated(self) -> int:
        """Backward passes since the last optimiser step."""
        return int(self._step % self.args.gradient_accumulation_steps)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        # TRL pads to the longest of a whole generation batch: one long episode would make all of its parts as slow.
        part = without_padding(inputs)
        if not (self.beta or self._entropy_bonus_enabled or self.aux_loss_enabled):
            self._learnt_from = part["advantages"] != 0
        try:
            loss: torch.Tensor = super()._compute_loss(model, part)  # type: ignore[no-untyped-call]  # TRL's has no types
        finally:
            self._learnt_from = None
        return loss

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        compute = super()._get_per_token_logps_and_entropies
        given = {name for name, value in kwargs.items() if value is not None and value is not False}
        of_text = not args and given <= {"batch_size", "compute_entropy"}
        # Several processes go through the model together, or not at all.
        if not of_text or self.accelerator.num_processes > 1:
            computed: tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]
            computed = compute(model, input_ids, attention_mask, logits_to_keep, *args, **kwargs)
            return computed

        def one_pass(ids: torch.Tensor, mask: torch.Tensor, kept: int) -> Computed:
            logps, entropies, _ = compute(model, ids, mask, kept, **kwargs)
            return logps, entropies

        return *in_passes(one_pass, input_ids, attention_mask, logits_to_keep, self._learnt_from), None

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

    def _get_train_sampler(self, dataset: Any = None) -> Sampler[int]:
        return ByEpoch(super()._get_train_sampler(dataset), lambda: int(self.state.epoch))

    def _get_output_dir(self, trial: Any) -> str:
        folder: str = super()._get_output_dir(trial)
        return str(checkpoints.unfinished_in(Path(folder))) if self._saving else folder

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder = Path(self._get_output_dir(trial))
        unfinished = checkpoints.unfinished_in(folder) / f"checkpoint-{self.state.global_step}"
        if self.args.should_save:
            checkpoints.begin(folder, unfinished.name)
        self.accelerator.wait_for_everyone()
        self._saving = True
        try:
            super()._save_checkpoint(model, trial)  # type: ignore[no-untyped-call]
        finally:
            self._saving = False
        checkpoints.save_state(unfinished / self._state_name(self.accelerator.process_index), self._state())
        if self.state.best_model_checkpoint == str(unfinished):  # the trainer has looked where it is written
            self.state.best_model_checkpoint = str(folder / unfinished.name)
            if self.args.should_save:
                self.state.save_to_json(str(unfinished / TRAINER_STATE_NAME))
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            checkpoints.publish(unfinished)
            checkpoints.keep_newest(folder, self.args.save_total_limit, self.state.best_model_checkpoint)
        self.accelerator.wait_for_everyone()
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(folder / unfinished.name))

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if not self._saving:  # only from its place
            super()._push_from_checkpoint(checkpoint_folder)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)  # type: ignore[no-untyped-call]
        if checkpoint is not None:
            path = Path(checkpoint) / self._state_name(self.accelerator.process_index)
            first = Path(checkpoint) / self._state_name(0)
            self._load_state(checkpoints.load_state(path if path.exists() else first))

    def _state(self) -> dict[str, Any]:
        """What this process needs to go on, besides what TRL saves."""
        in_use = self._step % (int(self.args.steps_per_generation or 1) * self.num_iterations)
        return {
            "processes": self.accelerator.num_processes,
            "step": self._step,
            "batch": self._buffered_inputs if in_use else None,
            "learners": checkpoints.states_of(self.learners()),
        }

    def _load_state(self, state: Mapping[str, Any]) -> None:
        checkpoints.restore(self.learners(), state["learners"])
        self._step = state["step"]
        if state["processes"] == self.accelerator.num_processes:
            self._buffered_inputs = state["batch"]
        elif state["batch"] is not None:
            warnings.warn(
                f"the checkpoint is from the middle of a batch of {state['processes']} processes, this run has "
                f"{self.accelerator.num_processes}: a new batch is generated",
                stacklevel=2,
            )

    @staticmethod
    def _state_name(process: int) -> str:
        return f"rollout_state_{process}.pt"


class ByEpoch(Sampler[int]):
    """A sampler whose order in an epoch depends on the number of the epoch, and not on those before it.

    A run that goes on in a later epoch so sees the order that the unbroken run saw.

    Args:
        sampler: TRL's; the first epoch stays as it is.
        epoch: The number of the epoch that begins.
    """

    def __init__(self, sampler: Any, epoch: Callable[[], int]) -> None:
        self._sampler = sampler
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        if self._sampler.shuffle:
            self._sampler.generator.manual_seed(self._sampler.seed + self._epoch())
        return iter(self._sampler)

    def __len__(self) -> int:
        return len(self._sampler)


def environment_reward(*, trajectory: Sequence[Any], measures: Sequence[Any], log_metric: Any, **_: Any) -> list[float]:
    """The reward function of every run: what the environments gave. It also logs the rollouts' measures."""
    for name, value in measures[0].items():
        log_metric(f"rollout/{name}", value)
    return [episode.reward for episode in trajectory]


def log_metric(trainer: GRPOTrainer, name: str, value: float) -> None:
    """Puts a value into the trainer's next entry of the training log; several of one name are averaged."""
    trainer._metrics["train"][name].append(value)


def without_padding(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """A part of a generation batch, cut to its own longest completion.

    Args:
        inputs: By name; what stands for tokens of completions is ``[row, token]`` and padded at the end.
    """
    mask = inputs["completion_mask"]
    width, used = mask.shape[1], max(1, int(mask.any(dim=0).sum()))
    return {
        name: value[:, :used] if name in _OF_COMPLETIONS and value.shape[1:] == (width,) else value
        for name, value in inputs.items()
    }
