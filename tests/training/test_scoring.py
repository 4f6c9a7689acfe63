"""Offline scores: exactly what greedy decoding would have matched, whatever else is in the batch."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from obsspec_gym.agents.engine.transformers import TransformersEngine  # noqa: E402
from obsspec_gym.agents.history import History  # noqa: E402
from obsspec_gym.agents.world_model.lm import LMWorldModel  # noqa: E402
from obsspec_gym.training import scoring  # noqa: E402
from obsspec_gym.training.passages import Answer, Passage, passages_of  # noqa: E402
from obsspec_gym.training.scoring import Score, answers_of, foreseen  # noqa: E402
from obsspec_gym.types import EpisodeId, Outcome, Sampling, Transition  # noqa: E402
from tests.agents.engine.tiny_models import VOCABULARY, qwen3  # noqa: E402

STOPS = (0, 1, 2, 3, 4, 5)


def asked(prompt: list[int], answer: list[int]) -> Passage:
    ids = (*prompt, *answer)
    return Passage("t", 0, ids, (Answer(0, len(prompt), len(ids), False, 1.0, 1.0),))


def test_an_answer_is_foreseen_exactly_where_greedy_decoding_writes_it() -> None:
    """Token by token, against the engine: its own answers, and the same with one token changed."""
    random, model = Random(0), qwen3(5).eval()
    prompts = [[random.randrange(VOCABULARY) for _ in range(random.randrange(3, 40))] for _ in range(60)]
    sampling = Sampling(temperature=0.0, max_tokens=24, stop_token_ids=STOPS)

    async def decode() -> list[list[int]]:
        with TransformersEngine(model, driver="inline") as engine:
            generations = [engine.submit(prompt, sampling, seed=0) for prompt in prompts]
            return [list((await generation).token_ids) for generation in generations]

    written = asyncio.run(decode())
    assert len({len(answer) for answer in written}) > 3
    passages, expected = [], []
    for prompt, answer in zip(prompts, written, strict=True):
        place = random.randrange(len(answer))
        changed = [*answer[:place], (answer[place] + 1) % VOCABULARY, *answer[place + 1 :]]
        for candidate in (answer, changed):
            passages.append(asked(prompt, candidate))
            expected.append(candidate == answer)
    assert foreseen(model, passages) == expected
    assert [foreseen(model, [each]) for each in passages] == [[match] for match in expected]


def test_a_world_model_predicts_exactly_what_is_foreseen(pretrained: Any, tokenizer: Any) -> None:
    """Whole episodes in one pass, against predictions turn by turn."""
    episodes = [
        Transition(history, Outcome(shown, command.startswith("submit")), 1.0)
        for number in range(12)
        for history, command, shown in _episode(number)
    ]

    async def predict() -> list[bool]:
        with TransformersEngine(pretrained, driver="inline") as engine:
            model = LMWorldModel(engine, tokenizer, context_length=256, max_tokens=32)
            passages.extend(passages_of(model, episodes))
            found = []
            for each in episodes:
                before = each.history.parent
                assert before is not None
                predictions = await model.predict(before, each.action, 1)
                found.append(
                    [(p.observation, p.ends) for p in predictions] == [(each.outcome.observation, each.outcome.ends)]
                )
            return found

    passages: list[Passage] = []
    episodes.sort(key=lambda each: (each.history.episode.task_id, each.history.turn))
    predicted = asyncio.run(predict())
    assert foreseen(pretrained, passages) == predicted
    assert 0 < sum(predicted) < len(predicted)


def _episode(number: int) -> list[tuple[History, str, str]]:
    history, found = History.start(EpisodeId(f"digits/{number:02}"), "Which digit?"), []
    shown = f"{'123'[number % 3]}\n[exit 0] ~"
    for command, observation in [("cat n", shown), ("cat n", shown), (f"submit {number % 3 + 1}", "[submitted]")]:
        history = history.act(command)
        found.append((history, command, observation))
        history = history.observe(observation)
    return found


def test_how_much_is_done_at_once_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    random, model = Random(1), qwen3(2).eval()
    passages = [
        asked([random.randrange(VOCABULARY) for _ in range(random.randrange(1, 30))], [random.randrange(VOCABULARY)])
        for _ in range(300)
    ]
    together = foreseen(model, passages)
    monkeypatch.setattr(scoring, "_TOKENS_AT_ONCE", 40)
    monkeypatch.setattr(scoring, "_LOGITS_AT_ONCE", 1)
    assert foreseen(model, passages) == together
    assert 0 < sum(together) < len(together)


def test_what_cannot_be_predicted_is_wrong() -> None:
    nothing = Passage("t", 0, (), (Answer(0, 0, 0, False, 1.0, 1.0),))
    assert foreseen(qwen3(), [nothing]) == [False]
    assert foreseen(qwen3(), []) == []
    assert answers_of([nothing, nothing]) == [*nothing.answers, *nothing.answers]


def test_rates_are_those_of_the_design() -> None:
    def answer(empty: bool, tool: float, hidable: float) -> Answer:
        return Answer(0, 0, 1, empty, tool, hidable)

    answers = [answer(True, 1.0, 0.5), answer(False, 2.0, 1.5), answer(False, 5.0, 4.0)]
    score = Score.of(answers, [True, False, True])
    assert score == Score(
        match_rate=pytest.approx(2 / 3),
        nonempty_match_rate=0.5,
        time_weighted_match_rate=pytest.approx(6 / 8),
        hidden_seconds=4.5,
    )
    assert Score.of(answers[:1], [True]).to_log("frozen_") == {
        "frozen_match_rate": 1.0,
        "frozen_time_weighted_match_rate": 1.0,
        "frozen_hidden_seconds": 0.5,
    }
    assert Score.of([], []).to_log() == {"hidden_seconds": 0}
