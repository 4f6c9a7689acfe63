"""What is relied on of TRL beyond its public interface, named with the version it holds for."""

from __future__ import annotations

import inspect

import pytest

trl = pytest.importorskip("trl")

from transformers import Trainer  # noqa: E402
from trl.trainer.grpo_trainer import GRPOTrainer  # noqa: E402
from trl.trainer.utils import RepeatSampler  # noqa: E402

from obsspec_gym.training.trl_hooks import TESTED_TRL, ByEpoch, RolloutTrainer  # noqa: E402


def test_the_hooks_are_written_for_the_installed_trl() -> None:
    """TRL 1.16. With another minor version: go through the list in ``trl_hooks``, run all tests, then say so there."""
    assert TESTED_TRL == "1.16"
    assert trl.__version__.startswith(f"{TESTED_TRL}.")


@pytest.mark.parametrize(
    ("owner", "name", "parameters"),
    [
        (GRPOTrainer, "_generate_and_score_completions", ["inputs"]),
        (GRPOTrainer, "_compute_loss", ["model", "inputs"]),
        (GRPOTrainer, "_calculate_rewards", ["inputs", "prompts", "completions", "completion_ids_list"]),
        (GRPOTrainer, "_get_train_sampler", ["dataset"]),
        (GRPOTrainer, "_save_checkpoint", ["model", "trial"]),
        (GRPOTrainer, "_load_optimizer_and_scheduler", ["checkpoint"]),
        (Trainer, "_get_output_dir", ["trial"]),
        (Trainer, "_push_from_checkpoint", ["checkpoint_folder"]),
    ],
)
def test_what_is_overridden_is_there(owner: type, name: str, parameters: list[str]) -> None:
    assert list(inspect.signature(vars(owner)[name]).parameters) == ["self", *parameters]
    assert name in vars(RolloutTrainer)


def test_what_goes_into_checkpoints_is_there() -> None:
    steps, made = inspect.getsource(GRPOTrainer._prepare_inputs), inspect.getsource(GRPOTrainer.__init__)
    for name in ("self._step", "self._buffered_inputs"):
        assert name in steps
        assert f"{name} = " in made


def test_what_decides_which_rows_need_a_gradient_is_there() -> None:
    name = "_get_per_token_logps_and_entropies"
    takes = list(inspect.signature(vars(GRPOTrainer)[name]).parameters)[1:7]
    assert takes == ["model", "input_ids", "attention_mask", "logits_to_keep", "batch_size", "compute_entropy"]
    assert name in vars(RolloutTrainer)
    made = inspect.getsource(GRPOTrainer.__init__)
    for attribute in ("self.beta", "self._entropy_bonus_enabled", "self.aux_loss_enabled"):
        assert f"{attribute} = " in made


def test_an_epoch_is_shuffled_by_its_number() -> None:
    def trls() -> RepeatSampler:
        return RepeatSampler(range(8), 2, batch_size=2, seed=5)

    epoch = 0
    sampler = ByEpoch(trls(), lambda: epoch)
    first = list(sampler)
    epoch = 1
    second = list(sampler)
    assert first == list(trls())
    assert sorted(first) == sorted(second) != first != second
    assert second == list(ByEpoch(trls(), lambda: 1))
    assert len(sampler) == 16


def test_another_trl_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trl, "__version__", "9.9.0")
    with pytest.warns(UserWarning, match=r"tested with TRL 1\.16 .* this is TRL 9\.9\.0"), pytest.raises(TypeError):
        RolloutTrainer()
