"""With speculation and without, a training is the same."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from obsspec_gym.agents.world_model.memory import MemoryWorldModel
from obsspec_gym.speculation.selector import FixedSelector, Off

pytest.importorskip("trl")

from tests.training.trainers import Recorder, Workshop, moved, weights

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")


class Hits(Recorder):
    """Counts turns whose action had been generated before its observation came."""

    hits = 0

    def roll_out(self, rows: Any) -> Any:
        batch = super().roll_out(rows)
        self.hits += sum(step.hit for row in batch.rows for step in row.trajectory.steps)
        return batch


def test_weights_agree_after_five_steps_in_float64(make: Workshop, pretrained: Any) -> None:
    """The observations of :class:`~tests.training.parts.DigitEnv` are the same however long anything takes."""
    before = copy.deepcopy(pretrained).double()
    trained = []
    for selector in (Off(), FixedSelector(2, 2)):
        trainer = make(
            model=copy.deepcopy(before),
            world_model=MemoryWorldModel(),
            speculation=selector,
            max_steps=5,
            kind=Hits,
        )
        trainer.train()
        assert (trainer.hits > 0) == (not isinstance(selector, Off))
        trained.append(weights(trainer))
    off, on = trained
    assert len(moved(dict(before.named_parameters()), off)) == len(off)
    difference = max(float((off[name] - on[name]).abs().max()) for name in off)
    assert difference <= 1e-9
