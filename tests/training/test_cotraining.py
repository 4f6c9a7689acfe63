"""The callback: with our trainer, with TRL's own, on two processes, and where something fails."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from obsspec_gym.agents.world_model.cascade import CascadeWorldModel
from obsspec_gym.agents.world_model.lm import LMWorldModel
from obsspec_gym.agents.world_model.memory import MemoryWorldModel
from obsspec_gym.errors import InvalidArgumentError, ObsSpecError
from tests.training.distributed import launch
from tests.training.foresight import Shelf, digit_episode, reader, transitions
from tests.training.parts import DigitEnv, DigitSuite

trl = pytest.importorskip("trl")

from obsspec_gym.training.checkpoints import load_state, save_state  # noqa: E402
from obsspec_gym.training.cotraining import WorldModelCoTrainingCallback  # noqa: E402
from obsspec_gym.training.cotraining_settings import CoTraining  # noqa: E402
from obsspec_gym.training.dataset import task_dataset  # noqa: E402
from obsspec_gym.training.grpo import ObsSpecGRPOTrainer  # noqa: E402
from tests.training.trainers import GROUP, config  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")

QUICK = CoTraining(steps=2, batch_tokens=200, learning_rate=1e-2)
RATES = {"match_rate", "nonempty_match_rate", "time_weighted_match_rate", "hidden_seconds"}
LOGGED = {"loss", "transitions", "seconds", *RATES, *(f"frozen_{name}" for name in RATES)}


def step(callback: WorldModelCoTrainingCallback) -> None:
    callback.on_step_end(None, None, None)


def shelf(world_model: LMWorldModel) -> Shelf:
    assert isinstance(world_model.engine, Shelf)
    return world_model.engine


def test_rollouts_of_the_trainer_are_learnt_from(model: Any, pretrained: Any, tokenizer: Any, tmp_path: Path) -> None:
    world_model = reader(tokenizer)
    callback = WorldModelCoTrainingCallback(CascadeWorldModel([MemoryWorldModel(), world_model]), pretrained, QUICK)
    envs = [DigitEnv(), DigitEnv()]
    with ObsSpecGRPOTrainer(
        model,
        args=config(tmp_path, per_device_train_batch_size=GROUP, max_steps=2, shuffle_dataset=True),
        train_dataset=task_dataset(DigitSuite(), (2, 4)),
        processing_class=tokenizer,
        suite=DigitSuite(),
        environments=envs,
        max_turn_tokens=16,
        callbacks=[callback],
    ) as trainer:
        trainer.train()
        entries = [entry for entry in trainer.state.log_history if "world_model/loss" in entry]
        assert len(entries) == 2
        for entry in entries:
            assert {name.removeprefix("world_model/") for name in entry if name.startswith("world_model/")} == LOGGED
            assert 4 <= entry["world_model/transitions"] <= entry["rollout/turns"]
        assert entries[0]["world_model/match_rate"] == entries[0]["world_model/frozen_match_rate"]
        first = next(iter(pretrained.named_parameters()))
        assert not torch.equal(shelf(world_model).weights[first[0]], first[1])
        assert shelf(world_model).weights_version == 3  # at the beginning, and after each step

        trainer.evaluate(task_dataset(DigitSuite(), (5,)))
        assert callback._reported == []
    assert callback.state_dict()["learner"]["replay"]["clock"] == 2


@pytest.mark.filterwarnings("ignore:You are using 'rollout_func':UserWarning")
def test_trl_s_own_trainer_with_a_rollout_function(model: Any, pretrained: Any, tokenizer: Any, tmp_path: Path) -> None:
    world_model = reader(tokenizer)
    callback = WorldModelCoTrainingCallback(world_model, pretrained, QUICK)

    def rollout(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        callback.report([each for number in range(len(prompts)) for each in digit_episode(number)])
        answer = tokenizer.encode("submit 1<|end|>", add_special_tokens=False)
        return {
            "prompt_ids": [tokenizer.encode(prompt, add_special_tokens=False) for prompt in prompts],
            "completion_ids": [answer for _ in prompts],
            "logprobs": [[0.0] * len(answer) for _ in prompts],
        }

    trainer = trl.GRPOTrainer(
        model,
        lambda completions, **_: [float(index) for index in range(len(completions))],
        args=config(tmp_path, per_device_train_batch_size=GROUP, max_steps=2, shuffle_dataset=True),
        train_dataset=task_dataset(DigitSuite(), (2, 4)),
        processing_class=tokenizer,
        rollout_func=rollout,
        callbacks=[callback],
    )
    callback.bind(trainer)
    trainer.train()
    rates = [entry["world_model/match_rate"] for entry in trainer.state.log_history if "world_model/loss" in entry]
    assert len(rates) == 2
    assert trainer.state.log_history[0]["world_model/transitions"] == 16
    assert shelf(world_model).weights_version == 3


def test_transitions_are_scored_before_they_are_learnt(pretrained: Any, tokenizer: Any) -> None:
    """Prequential: what was seen once is known the second time, and only then."""
    callback = WorldModelCoTrainingCallback(
        reader(tokenizer), pretrained, CoTraining(steps=20, batch_tokens=200, learning_rate=1e-2, ema_decay=0.0)
    )
    trainer, seen = Metrics(), []
    callback.bind(trainer)  # type: ignore[arg-type]
    for _ in range(3):
        for number in (3, 7):
            turns = [("cat n", f"secret {number}\n[exit 0] ~"), ("submit 1", "[submitted]")]
            callback.report(transitions(f"t{number}", 0, turns))
        step(callback)
        seen.append({name.removeprefix("world_model/"): values[-1] for name, values in trainer.logged.items()})
    first, *_, last = seen
    assert first["match_rate"] == first["frozen_match_rate"] < 1.0
    assert last["frozen_match_rate"] == first["frozen_match_rate"]
    assert last["match_rate"] > first["match_rate"]
    assert last["hidden_seconds"] > last["frozen_hidden_seconds"]


class Metrics:
    """What of a trainer is logged through."""

    def __init__(self) -> None:
        self.logged: dict[str, list[float]] = defaultdict(list)
        self._metrics = {"train": self.logged}


def test_a_restored_callback_goes_on_bit_by_bit(pretrained: Any, tokenizer: Any, tmp_path: Path) -> None:
    def make() -> tuple[WorldModelCoTrainingCallback, Shelf]:
        world_model = reader(tokenizer)
        return WorldModelCoTrainingCallback(world_model, pretrained, QUICK), shelf(world_model)

    def go_on(callback: WorldModelCoTrainingCallback) -> None:
        for number in (2, 3):
            callback.report(digit_episode(number))
            step(callback)

    unbroken, engine = make()
    for number in (0, 1):
        unbroken.report(digit_episode(number))
        step(unbroken)
    save_state(tmp_path / "state.pt", unbroken.state_dict())
    handed = dict(engine.weights)
    go_on(unbroken)

    restored, other = make()
    restored.load_state_dict(load_state(tmp_path / "state.pt"))
    assert all(torch.equal(other.weights[name], handed[name]) for name in handed)
    go_on(restored)
    assert all(torch.equal(other.weights[name], engine.weights[name]) for name in engine.weights)
    assert any(not torch.equal(other.weights[name], handed[name]) for name in handed)


class Full(Shelf):
    """Its second update does not fit in memory."""

    def update_weights(self, weights: Any = None) -> int:
        if self.weights_version == 1:
            raise torch.OutOfMemoryError("no memory left")
        return super().update_weights(weights)


def missing(tokenizer: Any, pretrained: Any, settings: CoTraining, folder: Path) -> WorldModelCoTrainingCallback:
    return WorldModelCoTrainingCallback(reader(tokenizer), folder / "nowhere", settings)


def of_another_shape(
    tokenizer: Any, pretrained: Any, settings: CoTraining, folder: Path
) -> WorldModelCoTrainingCallback:
    from obsspec_gym.agents.engine.transformers import TransformersEngine
    from tests.agents.engine.tiny_models import qwen3

    engine = TransformersEngine(qwen3(vocab_size=len(tokenizer), max_position_embeddings=256), driver="inline")
    return WorldModelCoTrainingCallback(
        LMWorldModel(engine, tokenizer, context_length=256, max_tokens=64), pretrained, settings
    )


def without_memory(tokenizer: Any, pretrained: Any, settings: CoTraining, folder: Path) -> WorldModelCoTrainingCallback:
    return WorldModelCoTrainingCallback(LMWorldModel(Full(), tokenizer), pretrained, settings)


def not_finite(tokenizer: Any, pretrained: Any, settings: CoTraining, folder: Path) -> WorldModelCoTrainingCallback:
    import copy

    poisoned = copy.deepcopy(pretrained)
    with torch.no_grad():
        next(poisoned.parameters()).fill_(torch.nan)
    return WorldModelCoTrainingCallback(reader(tokenizer), poisoned, settings)


Broken = Callable[[Any, Any, CoTraining, Path], WorldModelCoTrainingCallback]
FAILURES: list[tuple[Broken, str]] = [
    (missing, "config.json"),
    (of_another_shape, "of shape"),
    (without_memory, "no memory left"),
    (not_finite, "loss is nan"),
]


@pytest.mark.parametrize(("broken", "message"), FAILURES)
def test_a_failure_is_told_once_and_the_run_goes_on(
    broken: Broken, message: str, pretrained: Any, tokenizer: Any, tmp_path: Path, caplog: Any
) -> None:
    callback = broken(tokenizer, pretrained, QUICK, tmp_path)
    callback.on_train_begin(None, None, None)
    for number in range(4):
        callback.report(digit_episode(number))
        step(callback)
    callback.on_train_end(None, None, None)
    told = [record.message for record in caplog.records if "co-training" in record.message]
    assert len(told) == 1
    assert message in told[0]
    assert callback.state_dict() == {}


@pytest.mark.parametrize(("broken", "message"), FAILURES)
def test_a_failure_ends_a_strict_run(
    broken: Broken, message: str, pretrained: Any, tokenizer: Any, tmp_path: Path
) -> None:
    from dataclasses import replace

    def run() -> None:
        callback = broken(tokenizer, pretrained, replace(QUICK, strict=True), tmp_path)
        callback.on_train_begin(None, None, None)
        callback.report(digit_episode(0))
        step(callback)
        callback.on_train_end(None, None, None)

    with pytest.raises(ObsSpecError, match=message):
        run()


def test_an_engine_keeps_the_weights_it_had_when_co_training_failed(pretrained: Any, tokenizer: Any) -> None:
    world_model = reader(tokenizer)
    callback = WorldModelCoTrainingCallback(world_model, pretrained, QUICK)
    callback.report(digit_episode(0))
    step(callback)
    handed = dict(shelf(world_model).weights)
    learner = callback._learner
    assert learner is not None
    with torch.no_grad():
        next(learner.student.parameters()).fill_(torch.nan)
    step(callback)
    assert all(torch.equal(shelf(world_model).weights[name], handed[name]) for name in handed)
    assert all(tensor.isfinite().all() for tensor in handed.values())


def test_a_world_model_without_a_language_model_is_refused(pretrained: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="an LMWorldModel or a cascade with one, got MemoryWorldModel"):
        WorldModelCoTrainingCallback(MemoryWorldModel(), pretrained)
    with pytest.raises(InvalidArgumentError, match="got CascadeWorldModel"):
        WorldModelCoTrainingCallback(CascadeWorldModel([MemoryWorldModel()]), pretrained)


@pytest.fixture(scope="module")
def ranks(pretrained: Any, tokenizer: Any, tmp_path_factory: Any) -> list[dict[str, Any]]:
    """What two processes came to (gloo)."""
    folder = tmp_path_factory.mktemp("ranks")
    pretrained.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    launch("tests.training.two_ranks", [folder])
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.timeout(600)  # the first of them starts two processes, which import torch
def test_two_processes_have_the_world_model_of_one(
    ranks: list[dict[str, Any]], pretrained: Any, tokenizer: Any
) -> None:
    """Each reports half of what happened, one of them nothing in the second step."""
    from tests.training.two_ranks import EPISODES, SETTINGS

    assert ranks[0]["processes"] == ranks[1]["processes"] == 2
    assert ranks[0]["digest"] == ranks[1]["digest"]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as theirs: sums are then in the same order
    callback = WorldModelCoTrainingCallback(reader(tokenizer), pretrained, SETTINGS)
    for reported in EPISODES:
        callback.report([each for numbers in reported[::-1] for number in numbers for each in digit_episode(number)])
        step(callback)
    torch.set_num_threads(threads)
    assert callback._learner is not None
    assert callback._learner.digest() == ranks[0]["digest"]


@pytest.mark.timeout(600)  # the first of them starts two processes, which import torch
def test_weights_that_drifted_apart_are_made_equal(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["drifted"] != ranks[1]["drifted"]
    assert ranks[0]["repaired"] == ranks[1]["repaired"]


@pytest.mark.timeout(600)  # the first of them starts two processes, which import torch
def test_all_processes_stop_together_where_one_fails(ranks: list[dict[str, Any]]) -> None:
    assert [rank["told"] for rank in ranks] == [1, 1]
    assert ranks[0]["handed"] == ranks[1]["handed"]
    assert all(rank["went_on"] for rank in ranks)
