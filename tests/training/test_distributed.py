"""Two ranks train what one trains with twice the batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

pytest.importorskip("trl")

from tests.training import script
from tests.training.distributed import launch
from tests.training.trainers import GROUP

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")

LOSS = "dapo"  # its normaliser spans the ranks; that of the others does not


@pytest.mark.timeout(600)
def test_two_ranks_are_one_with_twice_the_batch(model_directory: Path, tmp_path: Path) -> None:
    linear = ["--optim", "sgd", "--learning-rate", "0.3"]  # in the gradient
    options = ["--loss", LOSS, "--tasks", "8", "--steps", "3", *linear]
    one, two = tmp_path / "one", tmp_path / "two"
    script.main([str(model_directory), str(one), "--batch", str(4 * GROUP), *options])
    printed = launch("tests.training.script", [model_directory, two, "--batch", 2 * GROUP, *options])
    assert printed.splitlines().count("done") == 2
    ours, theirs = (torch.load(path / "weights.pt", weights_only=True) for path in (one, two))
    before = AutoModelForCausalLM.from_pretrained(model_directory).state_dict()
    assert ours.keys() == theirs.keys()
    assert max(float((ours[name] - before[name]).abs().max()) for name in ours) > 1e-3
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], atol=2e-6, rtol=1e-5)
