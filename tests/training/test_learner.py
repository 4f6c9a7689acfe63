"""The world model's training: on the answers alone, the same everywhere, and going on from where it was."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from obsspec_gym.errors import InvalidArgumentError, ObsSpecError  # noqa: E402
from obsspec_gym.training.checkpoints import load_state, save_state  # noqa: E402
from obsspec_gym.training.cotraining_settings import CoTraining  # noqa: E402
from obsspec_gym.training.learner import Learner  # noqa: E402
from obsspec_gym.training.passages import Passage, passages_of  # noqa: E402
from obsspec_gym.training.scoring import answers_of, foreseen  # noqa: E402
from tests.training.foresight import digit_episode, reader  # noqa: E402

QUICK = CoTraining(steps=2, batch_tokens=200, learning_rate=1e-2, warm_up=2, window=3)


def lessons(tokenizer: Any, first: int, count: int = 4) -> list[Passage]:
    model = reader(tokenizer)
    return passages_of(model, [each for number in range(first, first + count) for each in digit_episode(number)])


def test_the_loss_is_of_observations_and_what_closes_them(pretrained: Any, tokenizer: Any) -> None:
    """Against the model's logits over whole passages, and by what a changed token changes."""
    learner, passages = Learner(pretrained, QUICK), lessons(tokenizer, 0)
    losses = []
    for passage in passages:
        logits = learner.student(torch.tensor([passage.ids])).logits[0].log_softmax(-1)
        for answer in passage.answers:
            losses += [-logits[at - 1, passage.ids[at]] for at in range(answer.start, answer.stop)]
    torch.testing.assert_close(learner.loss(passages), torch.stack(losses).mean())

    taught = {at for answer in passages[0].answers for at in range(answer.start, answer.stop)}
    text = tokenizer.convert_ids_to_tokens([passages[0].ids[at] for at in sorted(taught)])
    assert text.count("<|act|>") == 3
    assert text.count("<|end|>") == 1
    assert {"<|task|>", "<|obs|>"}.isdisjoint(text)


def test_only_answers_carry_gradient(pretrained: Any, tokenizer: Any) -> None:
    """The embedding of a token that stands in no passage gets gradient from the softmax of answers only."""
    learner, passages = Learner(pretrained, QUICK), lessons(tokenizer, 0, 1)
    silent = [Passage(p.task_id, p.sample, p.ids, tuple(_unpredictable(a) for a in p.answers)) for p in passages]
    assert not any(passage.teaches for passage in silent)
    learner.loss([*passages, *silent]).backward()
    with_silent = {name: p.grad.clone() for name, p in learner.student.named_parameters() if p.grad is not None}
    learner.student.zero_grad()
    learner.loss(passages).backward()
    for name, parameter in learner.student.named_parameters():
        torch.testing.assert_close(with_silent[name], parameter.grad)


def _unpredictable(answer: Any) -> Any:
    return replace(answer, stop=answer.start)


def test_seconds_weigh_the_loss(pretrained: Any, tokenizer: Any) -> None:
    [passage] = lessons(tokenizer, 0, 1)
    plain, weighted = (Learner(pretrained, CoTraining(time_weight=weight)) for weight in (0.0, 3.0))
    logits = plain.student(torch.tensor([passage.ids])).logits[0].log_softmax(-1)
    mean = sum(answer.hidable_seconds for answer in passage.answers) / len(passage.answers)
    assert mean > 0
    total = norm = 0.0
    for answer in passage.answers:
        weight = 1 + 3.0 * answer.hidable_seconds / mean
        for at in range(answer.start, answer.stop):
            total += weight * -float(logits[at - 1, passage.ids[at]].detach())
            norm += weight
    assert float(weighted.loss([passage]).detach()) == pytest.approx(total / norm, rel=1e-5)
    assert float(weighted.loss([passage]).detach()) != pytest.approx(float(plain.loss([passage]).detach()), rel=1e-3)


def test_the_live_model_learns_and_its_twin_stays(pretrained: Any, tokenizer: Any) -> None:
    learner = Learner(pretrained, CoTraining(steps=6, batch_tokens=300, learning_rate=1e-2))
    assert learner.twin is not None
    before = {name: parameter.clone() for name, parameter in pretrained.named_parameters()}
    losses = [learner.learn(lessons(tokenizer, 4 * step)) for step in range(8)]
    assert losses[-1] < 0.5 * losses[0]  # type: ignore[operator]
    unseen = lessons(tokenizer, 100, 20)
    assert len(answers_of(unseen)) == 80
    live, frozen = foreseen(learner.model, unseen), foreseen(learner.twin, unseen)
    assert sum(live) > sum(frozen) + 20
    for name, parameter in learner.twin.named_parameters():
        assert torch.equal(parameter, before[name])
    assert all(torch.equal(parameter, before[name]) for name, parameter in pretrained.named_parameters())


@pytest.mark.parametrize("decay", [0.0, 0.8])
def test_what_predicts_is_the_moving_average(pretrained: Any, tokenizer: Any, decay: float) -> None:
    learner = Learner(pretrained, replace(QUICK, ema_decay=decay))
    expected = {name: parameter.clone() for name, parameter in pretrained.named_parameters()}
    for step in range(3):
        learner.learn(lessons(tokenizer, 4 * step))
        for name, parameter in learner.student.named_parameters():
            expected[name] = decay * expected[name] + (1 - decay) * parameter.detach()
    for name, weight in learner.weights().items():
        torch.testing.assert_close(weight, expected[name])
    moved = [(a - b).norm() for a, b in zip(learner.model.parameters(), pretrained.parameters(), strict=True)]
    assert min(moved) > 0
    assert all(not parameter.requires_grad for parameter in learner.model.parameters())


def test_a_model_that_a_trainer_had_is_copied_with_its_own_forward(
    make: Any, model: Any, pretrained: Any, tokenizer: Any
) -> None:
    make()  # TRL's trainer puts a forward into the model, which holds the model's own
    assert "forward" in vars(model)
    learners = [Learner(start, QUICK) for start in (model, pretrained)]
    for learner in learners:
        learner.learn(lessons(tokenizer, 0, 1))
    ids = torch.arange(12)[None]
    with torch.no_grad():
        had, fresh = (learner.model(ids).logits for learner in learners)
    assert torch.equal(had, fresh)
    assert not torch.equal(had, pretrained(ids).logits)


def test_a_continued_training_is_the_unbroken_one_bit_by_bit(pretrained: Any, tokenizer: Any, tmp_path: Any) -> None:
    unbroken = Learner(pretrained, QUICK)
    for step in range(3):
        unbroken.learn(lessons(tokenizer, 4 * step))
    save_state(tmp_path / "state.pt", unbroken.state_dict())
    digest = unbroken.digest()
    for step in range(3, 6):
        unbroken.learn(lessons(tokenizer, 4 * step))
    continued = Learner(pretrained, QUICK)
    assert continued.digest() != digest
    continued.load_state_dict(load_state(tmp_path / "state.pt"))
    assert continued.digest() == digest
    for step in range(3, 6):
        continued.learn(lessons(tokenizer, 4 * step))
    assert continued.digest() == unbroken.digest()


def test_a_state_is_not_changed_by_what_comes_after(pretrained: Any, tokenizer: Any) -> None:
    learner = Learner(pretrained, QUICK)
    learner.learn(lessons(tokenizer, 0))
    state = learner.state_dict()
    kept = copy.deepcopy(state)
    learner.learn(lessons(tokenizer, 4))
    for which, weights in kept["weights"].items():
        assert all(torch.equal(state["weights"][which][name], weights[name]) for name in weights)
    for index, moments in kept["optimizer"]["state"].items():
        assert torch.equal(state["optimizer"]["state"][index]["exp_avg"], moments["exp_avg"])
    assert state["replay"] == kept["replay"]


def test_seed_and_order_decide(pretrained: Any, tokenizer: Any) -> None:
    def digest(settings: CoTraining) -> str:
        learner = Learner(pretrained, settings)
        learner.learn(lessons(tokenizer, 0, 8))
        return learner.digest()

    assert digest(QUICK) == digest(QUICK)
    assert digest(replace(QUICK, seed=1)) != digest(QUICK)


def test_nothing_to_learn_from_is_no_step(pretrained: Any) -> None:
    learner = Learner(pretrained, QUICK)
    digest = learner.digest()
    assert learner.learn([]) is None
    assert learner.digest() == digest


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_an_error(pretrained: Any, tokenizer: Any, poison: float) -> None:
    learner = Learner(pretrained, QUICK)
    with torch.no_grad():
        next(learner.student.parameters()).fill_(poison)
    with pytest.raises(ObsSpecError, match="loss is nan"):
        learner.learn(lessons(tokenizer, 0))


@pytest.mark.parametrize(
    "change",
    [
        {"steps": 0},
        {"batch_tokens": -1},
        {"learning_rate": 0.0},
        {"window": 0},
        {"time_weight": -1.0},
        {"warm_up": -1},
        {"ema_decay": -0.1},
    ],
)
def test_settings_are_checked(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{next(iter(change))} must be a number"):
        CoTraining(**change)


def test_weights_that_are_not_finite_are_an_error_and_not_averaged(
    pretrained: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = Learner(pretrained, replace(QUICK, steps=1))
    learner.learn(lessons(tokenizer, 0))
    before = learner.cpu_weights()["model"]

    def overflow() -> None:
        with torch.no_grad():
            next(learner.student.parameters())[0, 0] = math.inf

    monkeypatch.setattr(learner._optimizer, "step", overflow)
    with pytest.raises(ObsSpecError, match="not finite"):
        learner.learn(lessons(tokenizer, 4))
    assert all(torch.equal(weight, before[name]) for name, weight in learner.weights().items())


def test_a_state_without_an_average_is_refused(pretrained: Any) -> None:
    learner = Learner(pretrained, QUICK)
    with pytest.raises(ObsSpecError, match="earlier version"):
        learner.load_state_dict({"model": {}, "optimizer": {}, "replay": {}, "updates": 0})


def test_an_average_that_never_moves_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="ema_decay must be below 1, or nothing is learnt, got 1"):
        CoTraining(ema_decay=1.0)
