"""What is relied on of TRL beyond its public interface, named with the version it holds for."""

from __future__ import annotations

import inspect

import pytest

trl = pytest.importorskip("trl")

from trl.trainer.grpo_trainer import GRPOTrainer  # noqa: E402

from obsspec_gym.training.trl_hooks import TESTED_TRL, RolloutTrainer  # noqa: E402


def test_the_hooks_are_written_for_the_installed_trl() -> None:
    """TRL 1.16. With another minor version: go through the list in ``trl_hooks``, run all tests, then say so there."""
    assert TESTED_TRL == "1.16"
    assert trl.__version__.startswith(f"{TESTED_TRL}.")


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("_generate_and_score_completions", ["self", "inputs"]),
        ("_calculate_rewards", ["self", "inputs", "prompts", "completions", "completion_ids_list"]),
    ],
)
def test_what_is_overridden_is_there(name: str, parameters: list[str]) -> None:
    assert list(inspect.signature(vars(GRPOTrainer)[name]).parameters) == parameters
    assert name in vars(RolloutTrainer)


def test_another_trl_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trl, "__version__", "9.9.0")
    with pytest.warns(UserWarning, match=r"tested with TRL 1\.16 .* this is TRL 9\.9\.0"), pytest.raises(TypeError):
        RolloutTrainer()
