"""Episodes for a world model to learn from: a rule that a tiny model picks up in a few steps, and an engine that only
keeps weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from obsspec_gym.agents.engine.base import Capabilities, EngineLoad
from obsspec_gym.agents.history import History
from obsspec_gym.agents.world_model.lm import LMWorldModel
from obsspec_gym.types import EpisodeId, Outcome, Transition


class Shelf:
    """An engine that generates nothing, and copies the weights it is given."""

    def __init__(self) -> None:
        self.capabilities = Capabilities()
        self.weights_version = 0
        self.weights: dict[str, Any] = {}

    def submit(self, prompt_ids: Sequence[int], sampling: Any, seed: int, **_: Any) -> Any:
        raise AssertionError("nothing is generated here")

    def load(self) -> EngineLoad:
        return EngineLoad()

    def update_weights(self, weights: Mapping[str, Any] | None = None) -> int:
        assert weights is not None
        self.weights = {name: tensor.clone() for name, tensor in weights.items()}
        self.weights_version += 1
        return self.weights_version

    def close(self) -> None:
        pass


def reader(tokenizer: Any, **options: Any) -> LMWorldModel:
    return LMWorldModel(Shelf(), tokenizer, **{"context_length": 256, "max_tokens": 64, **options})


def transitions(task: str, sample: int, turns: Sequence[tuple[str, str]], *, ended: bool = True) -> list[Transition]:
    """An episode of commands and what they showed; the ``i``-th took ``i + 1`` seconds."""
    history, found = History.start(EpisodeId(task, sample), "Which digit?"), []
    for number, (command, observation) in enumerate(turns):
        acted = history.act(command)
        ends = ended and number == len(turns) - 1
        found.append(Transition(acted, Outcome(observation, ends), number + 1.0))
        history = acted.observe(observation)
    return found


def digit_episode(number: int) -> list[Transition]:
    """``cat n`` shows a digit that only training tells; ``cat n`` again shows the same."""
    shown = f"{number % 9 + 1}\n[exit 0] ~"
    turns = [("cat n", shown), ("cat n", shown), ("ls", "n\n[exit 0] ~"), ("submit 1", "[submitted]")]
    return transitions(f"digits/{number}", 0, turns)
