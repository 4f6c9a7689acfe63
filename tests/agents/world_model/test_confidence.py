"""How sure a prediction is: what surprises the model is what it would not have written, and costs confidence."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from obsspec_gym.agents.history import History
from obsspec_gym.agents.world_model.confidence import FEATURES, FILE, LEAST, Confidence, Evidence
from obsspec_gym.agents.world_model.lm import LMWorldModel
from obsspec_gym.agents.world_model.surprise import surprise_of
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.types import Completion, EpisodeId

START = History.start(EpisodeId("t"), "Fix it.")
MINDFUL = Confidence(-1.0, (0.0, 0.0, 3.0, 0.0, 1.0, 0.5))


@given(
    own=st.lists(st.integers(0, 3), min_size=1, max_size=6),
    written=st.lists(st.tuples(st.integers(0, 3), st.floats(-8, 0)), min_size=1, max_size=6),
)
def test_a_surprise_bounds_the_log_probability_of_what_was_not_written(
    own: list[int], written: list[tuple[int, float]]
) -> None:
    tokens, logprobs = zip(*written, strict=True)
    surprise = surprise_of(own, Completion(tokens, logprobs))
    assert LEAST <= surprise <= 0
    for expected, (token, logprob) in zip(own, written, strict=False):
        if token != expected:
            left = 1 - math.exp(logprob)
            assert math.exp(surprise) <= max(left, math.exp(LEAST)) + 1e-12
            break
        assert surprise <= max(logprob, LEAST)


@given(st.lists(st.floats(-30, 0), min_size=1, max_size=5), st.floats(LEAST, 0))
def test_confidence_is_a_probability_and_falls_with_surprise(logprobs: list[float], surprise: float) -> None:
    sure, odd = MINDFUL(Evidence(logprobs)), MINDFUL(Evidence(logprobs, surprise))
    assert 0 <= odd <= sure <= 1


def test_confidence_is_kept_beside_the_weights_it_was_fitted_for(tmp_path: Path) -> None:
    assert Confidence.load(tmp_path) is None
    MINDFUL.save(tmp_path)
    assert Confidence.load(tmp_path) == MINDFUL
    for broken in ("{", "[]", '{"bias": 1}', '{"bias": 1, "weights": ["a"]}'):
        (tmp_path / FILE).write_text(broken)
        with pytest.raises(InvalidArgumentError, match="must hold a bias and weights"):
            Confidence.load(tmp_path)
    with pytest.raises(InvalidArgumentError, match=f"expected {FEATURES} weights"):
        Confidence(0.0, (1.0,))


def _predict(model: LMWorldModel, history: History, action: str) -> Any:
    [prediction] = asyncio.run(model.predict(history, action, 1))
    return prediction


def test_the_shipped_model_doubts_what_follows_an_odd_action() -> None:
    """Beside the log-probabilities of a plain forward pass over the same tokens, with the real engine."""
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    from obsspec_gym.agents.engine.transformers import TransformersEngine
    from obsspec_gym.agents.loading import load_tokenizer, model_directory
    from obsspec_gym.envs.tasks import get_suite

    directory = model_directory("shipped", "world_model")
    tokenizer = load_tokenizer(directory)
    task = get_suite("basics").task(10_000)
    seen: list[Evidence] = []

    def note(evidence: Evidence) -> float:
        seen.append(evidence)
        return MINDFUL(evidence)

    reference = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    start = History.start(EpisodeId(task.id), task.instruction)
    with TransformersEngine(directory, driver="inline") as engine:
        model = LMWorldModel(engine, tokenizer, confidence=note)
        plain = LMWorldModel(engine, tokenizer)
        for action in ("ls", "xyzzy --frobnicate 7"):
            prediction = _predict(model, start, action)
            assert prediction.observation == _predict(plain, start, action).observation
            prompt = model.prompt(start, action)
            assert prompt is not None
            own = prompt[prompt.index(tokenizer.convert_tokens_to_ids("<|act|>")) + 1 : -1]
            with torch.no_grad():
                logits = reference(torch.tensor([prompt])).logits[0].log_softmax(-1)
            steps = logits[len(prompt) - len(own) - 2 : len(prompt) - 2]
            greedy = steps.argmax(-1).tolist()
            expected = surprise_of(own, Completion(tuple(greedy), tuple(steps.max(-1).values.tolist())))
            assert seen[-1].surprise == pytest.approx(expected, abs=1e-3)
        usual, odd = seen
        assert odd.surprise < usual.surprise
        # What was odd stays odd: the next action's outcome is doubted for the sake of the one before.
        later = start.act("xyzzy --frobnicate 7").observe("[exit 127] ~")
        _predict(model, later, "ls")
        assert seen[-1].surprise <= odd.surprise
        assert engine.load().running == engine.load().waiting == 0


def test_each_action_is_asked_about_once_and_again_under_new_weights() -> None:
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    from obsspec_gym.agents.engine.transformers import TransformersEngine
    from obsspec_gym.agents.loading import load_tokenizer, model_directory

    directory = model_directory("shipped", "world_model")
    source = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    drafted = 0
    with TransformersEngine(source, driver="inline") as engine:
        submit = engine.submit

        def count(*args: Any, **options: Any) -> Any:
            nonlocal drafted
            drafted += bool(options.get("draft"))
            return submit(*args, **options)

        engine.submit = count  # type: ignore[method-assign]
        model = LMWorldModel(engine, load_tokenizer(directory), confidence=MINDFUL)
        later = START.act("ls").observe("a\n[exit 0] ~")
        asyncio.run(model.predict(START, "ls", 1))
        assert drafted == 1
        asyncio.run(model.predict(later, "cat a", 1))
        assert drafted == 2
        asyncio.run(model.predict(later, "cat a", 1))
        assert drafted == 2
        engine.update_weights()
        asyncio.run(model.predict(later, "cat a", 1))
        assert drafted == 4


def test_without_drafts_the_texts_probability_stands(compact_tokenizer: Any) -> None:
    from obsspec_gym.agents.dialogue import ACT
    from tests.agents.world_model.test_lm import WritingEngine, always

    engine = WritingEngine(compact_tokenizer, always(f"a{ACT}"), confidence=0.5)
    prediction = _predict(LMWorldModel(engine, compact_tokenizer, confidence=lambda _: 0.123), START, "ls")
    assert prediction.probability == _predict(LMWorldModel(engine, compact_tokenizer), START, "ls").probability
    assert len(engine.requests) == 2
