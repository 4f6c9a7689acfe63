"""LMWorldModel: what it reads, what it makes of what is generated, and what it leaves running (nothing)."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest

from obsspec_gym.agents.dialogue import ACT, END, OBS
from obsspec_gym.agents.engine.base import Capabilities, EngineLoad
from obsspec_gym.agents.generation import Generation
from obsspec_gym.agents.history import History
from obsspec_gym.agents.world_model.base import WorldModel
from obsspec_gym.agents.world_model.lm import LMWorldModel
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.types import (
    Completion,
    EpisodeId,
    FinishReason,
    Hint,
    MalformedCall,
    Outcome,
    Prediction,
    Priority,
    Sampling,
    Transition,
)

Answer = Callable[[str, Sampling, int], str]


class WritingEngine:
    """Answers a prompt's text with a text; ``confidence`` is the probability of each whole answer."""

    weights_version = 0

    def __init__(
        self, tokenizer: Any, answer: Answer, *, confidence: float = 0.9, hangs: bool = False, drafts: bool = False
    ) -> None:
        self.capabilities = Capabilities(addressed_noise=True, priority=True, cancel=True, drafts=drafts)
        self.prompts: list[str] = []
        self.drafts: list[str] = []
        self.requests: list[tuple[Sampling, int, Priority]] = []
        self.cancelled = 0
        self.closed = False
        self._tokenizer = tokenizer
        self._answer = answer
        self._confidence = confidence
        self._hangs = hangs

    def submit(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        seed: int,
        *,
        hint: Hint | None = None,
        priority: Priority = Priority.COMMITTED,
        draft: Sequence[int] = (),
    ) -> Generation:
        self.prompts.append(self._tokenizer.decode(list(prompt_ids)))
        self.drafts.append(self._tokenizer.decode(list(draft)))
        self.requests.append((sampling, seed, priority))
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        ids = self._tokenizer.encode(self._answer(self.prompts[-1], sampling, seed), add_special_tokens=False)
        if not self._hangs:
            cut = ids[: sampling.max_tokens]
            reason = FinishReason.STOP if cut[-1:] and cut[-1] in sampling.stop_token_ids else FinishReason.LENGTH
            future.set_result(Completion(tuple(cut), (math.log(self._confidence) / len(cut),) * len(cut), reason))
        return Generation(future, cancel=self._cancel)

    def _cancel(self) -> None:
        self.cancelled += 1

    def load(self) -> EngineLoad:
        return EngineLoad()

    def update_weights(self, weights: Any = None) -> int:
        return 0

    def close(self) -> None:
        self.closed = True


START = History.start(EpisodeId("count"), "How many?")
DONE = "[exit 0] ~"


def always(text: str) -> Answer:
    return lambda prompt, sampling, seed: text


def ask(model: LMWorldModel, history: History, action: Any, n: int = 1, partial: str = "") -> list[Prediction]:
    return asyncio.run(model.predict(history, action, n, partial))


def test_reads_the_dialogue_and_predicts_greedily(compact_tokenizer: Any) -> None:
    engine = WritingEngine(compact_tokenizer, always(f"3\n{DONE}{ACT}"), confidence=0.8)
    model = LMWorldModel(engine, compact_tokenizer)
    assert isinstance(model, WorldModel)
    history = START.act("ls").observe(f"a\n{DONE}")
    [prediction] = ask(model, history, "ls | wc -l")
    assert engine.prompts == [f"<|task|>How many?<|act|>ls<|end|><|obs|>a\n{DONE}<|act|>ls | wc -l<|end|><|obs|>"]
    assert (prediction.observation, prediction.ends, prediction.source) == (f"3\n{DONE}", False, "lm")
    assert prediction.probability == pytest.approx(0.8, abs=0.06)
    [(sampling, _, _)] = engine.requests
    assert sampling.temperature == 0
    assert sampling.stop_token_ids == tuple(compact_tokenizer.convert_tokens_to_ids([ACT, END]))


def test_the_prompt_is_what_the_policy_s_dialogue_writes(compact_tokenizer: Any) -> None:
    """One token sequence of an episode trains both models."""
    from obsspec_gym.agents.lm_policy import LMPolicy

    engine = WritingEngine(compact_tokenizer, always(ACT))
    policy = LMPolicy(engine, compact_tokenizer)
    history = History.start(EpisodeId("t"), "do it", policy.encode_observation(None, "do it"))
    for command, observation in [("ls", "a\n<|end|>"), ("cat 'a b'", DONE)]:
        history = history.act(command, policy.encode_action(command))
        history = history.observe(observation, policy.encode_observation(history, observation))
    acted = history.act("pwd", policy.encode_action("pwd"))
    following = policy.encode_observation(acted, "")
    prompt = LMWorldModel(engine, compact_tokenizer).prompt(history, "pwd")
    assert prompt == (*acted.token_ids, *following[:-1])


def test_what_the_action_brought_before_is_the_draft(compact_tokenizer: Any) -> None:
    engine = WritingEngine(compact_tokenizer, always(f"3\n{DONE}{ACT}"), drafts=True)
    model = LMWorldModel(engine, compact_tokenizer)
    history = START.act("cat a").observe(f"old\n{DONE}").act("cat a").observe(f"new {DONE * 9}").act("ls").observe("a")
    ask(model, history, "cat a", n=2)
    assert engine.drafts == [f"new {DONE * 9}{ACT}", ""]  # the latest; sampled predictions are other ones
    ask(model, history, "cat a", partial="new [")  # what is there already needs no draft
    assert engine.drafts[2].endswith(f"exit 0] ~{ACT}")
    assert engine.drafts[2].startswith((" [exit", "exit"))
    for action, partial in (("cat a", "3\n"), ("cat b", "")):
        ask(model, history, action, partial=partial)
        assert engine.drafts[-1] == ""


def test_what_a_program_printed_in_few_words_is_the_draft(compact_tokenizer: Any) -> None:
    engine = WritingEngine(compact_tokenizer, always(f"{DONE}{ACT}"), drafts=True)
    model = LMWorldModel(engine, compact_tokenizer)
    for command, observation in (("sed -i s/1/2/ a", "ok"), ("cat a", "word " * 30)):
        model.observe(Transition(START.act(command), Outcome(observation), 0.1))
    assert [engine.drafts[-1] for command in ("sed -n 3p b", "cat b", "", "ls") if ask(model, START, command)] == [
        f"ok{ACT}",
        "",
        "",
        "",
    ]
    model.observe(Transition(START.act("sed -n 3p b"), Outcome("word " * 30), 0.1))  # not few any more
    ask(model, START, "sed -n 4p b")
    assert engine.drafts[-1] == ""


def test_an_engine_without_drafts_gets_none(compact_tokenizer: Any) -> None:
    engine = WritingEngine(compact_tokenizer, always(f"{DONE}{ACT}"))
    model = LMWorldModel(engine, compact_tokenizer)
    model.observe(Transition(START.act("sed -i s/1/2/ a"), Outcome("ok"), 0.1))
    ask(model, START.act("sed x").observe(DONE), "sed x")
    assert engine.drafts == [""]


def test_the_end_of_the_episode_is_predicted(compact_tokenizer: Any) -> None:
    model = LMWorldModel(WritingEngine(compact_tokenizer, always(f"[submitted]{END}")), compact_tokenizer)
    [prediction] = ask(model, START, "submit 3")
    assert (prediction.observation, prediction.ends) == ("[submitted]", True)


def test_a_prediction_that_was_cut_or_holds_a_control_token_is_none(compact_tokenizer: Any) -> None:
    for text in ["word " * 40 + ACT, f"a{OBS}b{ACT}", "<|task|>" + ACT]:
        model = LMWorldModel(WritingEngine(compact_tokenizer, always(text)), compact_tokenizer, max_tokens=20)
        assert ask(model, START, "ls", n=3) == []


def test_further_predictions_are_sampled_with_derived_seeds_and_distinct(compact_tokenizer: Any) -> None:
    def answer(prompt: str, sampling: Sampling, seed: int) -> str:
        return f"greedy{ACT}" if sampling.temperature == 0 else f"sample {seed % 2}{ACT}"

    engine = WritingEngine(compact_tokenizer, answer)
    model = LMWorldModel(engine, compact_tokenizer)
    predictions = ask(model, START, "ls", n=6)
    observations = [p.observation for p in predictions]
    assert observations[0] == "greedy"
    assert len(set(observations)) == len(observations) <= 3
    assert sum(p.probability for p in predictions) <= 1 + 1e-9
    assert [s.temperature for s, _, _ in engine.requests] == [0, 1, 1, 1, 1, 1]
    assert len({seed for _, seed, _ in engine.requests}) == 6
    assert [p for _, _, p in engine.requests] == [Priority.COMMITTED] + [Priority.SPECULATIVE] * 5
    again = WritingEngine(compact_tokenizer, answer)
    assert ask(LMWorldModel(again, compact_tokenizer), START, "ls", n=6) == predictions


def test_output_that_is_already_there_is_continued(compact_tokenizer: Any) -> None:
    def answer(prompt: str, sampling: Sampling, seed: int) -> str:
        begun = prompt.rpartition(OBS)[2]
        return f"ok 12\n{DONE}"[len(begun) :] + ACT

    engine = WritingEngine(compact_tokenizer, answer)
    model = LMWorldModel(engine, compact_tokenizer)
    [prediction] = ask(model, START, "make", partial="ok 1")
    assert prediction.observation == f"ok 12\n{DONE}"
    assert engine.prompts[-1].endswith("<|obs|>ok "), "a number may be cut in two: it is generated again"


def test_output_that_the_model_would_not_have_written_is_forced_upon_it(compact_tokenizer: Any) -> None:
    def answer(prompt: str, sampling: Sampling, seed: int) -> str:
        return ("" if prompt.endswith("failed") else "passed") + f"\n{DONE}{ACT}"

    engine = WritingEngine(compact_tokenizer, answer)
    [prediction] = ask(LMWorldModel(engine, compact_tokenizer), START, "make", partial="failed")
    assert prediction.observation == f"failed\n{DONE}"
    assert len(engine.prompts) == 2
    assert ask(LMWorldModel(engine, compact_tokenizer), START, "make", partial="x" * 5000) == []


def test_what_is_no_text_is_not_predicted(compact_tokenizer: Any) -> None:
    engine = WritingEngine(compact_tokenizer, always(ACT))
    model = LMWorldModel(engine, compact_tokenizer)
    assert ask(model, START, 3) == []
    assert ask(model, History.start(EpisodeId("t"), 3), "ls") == []
    assert ask(model, START, "ls", n=0) == []
    assert engine.prompts == []
    assert ask(model, START.act(MalformedCall("?")).observe("no"), "ls") != []


def test_control_tokens_in_observations_are_only_text(compact_tokenizer: Any) -> None:
    model = LMWorldModel(WritingEngine(compact_tokenizer, always(ACT)), compact_tokenizer)
    prompt = model.prompt(START.act("cat a").observe("<|end|><|obs|>"), "ls <|act|>")
    assert prompt is not None
    control = compact_tokenizer.convert_tokens_to_ids([ACT, OBS, END])
    assert [prompt.count(token) for token in control] == [2, 2, 2]


def test_a_long_history_keeps_the_task_and_the_recent_turns(compact_tokenizer: Any) -> None:
    model = LMWorldModel(
        WritingEngine(compact_tokenizer, always(ACT)), compact_tokenizer, context_length=320, max_tokens=20
    )
    history, begins = START, []
    for turn in range(40):
        prompt = model.prompt(history, f"now {turn}")
        assert prompt is not None
        assert len(prompt) <= 300
        text = compact_tokenizer.decode(list(prompt))
        assert text.startswith("<|task|>How many?<|act|>")
        assert text.endswith(f"<|act|>now {turn}<|end|><|obs|>")
        if turn:
            assert f"<|obs|>output {turn - 1}<|act|>now" in text
        assert text.count(ACT) == text.count(OBS) == text.count(END)
        begins.append(text.split(ACT)[1])
        history = history.act(f"command {turn}").observe(f"output {turn}")
    changes = sum(left != right for left, right in pairwise(begins))
    assert begins[-1] != begins[1]
    assert changes <= 40 / 4 + 1, "turns are dropped in steps, so that prompts keep a common prefix"


def test_what_cannot_fit_is_not_predicted(compact_tokenizer: Any) -> None:
    engine = WritingEngine(compact_tokenizer, always(ACT))
    model = LMWorldModel(engine, compact_tokenizer, context_length=64, max_tokens=20)
    assert ask(model, START, "word " * 100) == []
    assert ask(model, START.act("ls").observe("word " * 100), "ls") != [], "the turn is dropped, the task stays"
    assert len(engine.prompts) == 1


def test_encoded_events_are_kept_within_bounds(compact_tokenizer: Any) -> None:
    model = LMWorldModel(WritingEngine(compact_tokenizer, always(ACT)), compact_tokenizer, cached_events=3)
    history = START
    for turn in range(5):
        history = history.act(f"command {turn}").observe(f"output {turn}")
    fresh = LMWorldModel(WritingEngine(compact_tokenizer, always(ACT)), compact_tokenizer)
    assert model.prompt(history, "ls") == model.prompt(history, "ls") == fresh.prompt(history, "ls")
    assert len(model._segments) == 3


def test_what_several_episodes_ask_at_once_is_generated_once(compact_tokenizer: Any) -> None:
    engine = WritingEngine(compact_tokenizer, always(""), hangs=True)
    model = LMWorldModel(engine, compact_tokenizer)
    members = [History.start(EpisodeId("count", sample), "How many?") for sample in range(3)]

    async def main() -> None:
        tasks = [asyncio.create_task(model.predict(member, "ls", 1)) for member in members]
        await asyncio.sleep(0.01)
        assert len(engine.requests) == 1
        for count, task in enumerate(tasks):
            assert engine.cancelled == 0, f"{3 - count} still wait"
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert engine.cancelled == 1

    asyncio.run(main())


def test_cancelling_a_prediction_cancels_its_generations(compact_tokenizer: Any) -> None:
    engine = WritingEngine(compact_tokenizer, always(ACT), hangs=True)
    model = LMWorldModel(engine, compact_tokenizer)

    async def main() -> None:
        task = asyncio.create_task(model.predict(START, "ls", 3))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert (len(engine.requests), engine.cancelled) == (3, 3)


def test_an_engine_that_refuses_leaves_nothing_running(compact_tokenizer: Any) -> None:
    def answer(prompt: str, sampling: Sampling, seed: int) -> str:
        if sampling.temperature:
            raise InvalidArgumentError("no")
        return ACT

    engine = WritingEngine(compact_tokenizer, answer, hangs=True)
    with pytest.raises(InvalidArgumentError):
        ask(LMWorldModel(engine, compact_tokenizer), START, "ls", n=2)
    assert engine.cancelled == 1


def test_learns_how_far_it_can_be_trusted(compact_tokenizer: Any) -> None:
    model = LMWorldModel(WritingEngine(compact_tokenizer, always(f"a{ACT}"), confidence=0.95), compact_tokenizer)
    for i in range(30):
        ask(model, START, f"cat {i}")
        model.observe(Transition(START.act(f"cat {i}"), Outcome("b"), 0.1))
    [prediction] = ask(model, START, "cat 99")
    assert prediction.probability < 0.2
    restored = LMWorldModel(WritingEngine(compact_tokenizer, always(f"a{ACT}"), confidence=0.95), compact_tokenizer)
    restored.load_state_dict(model.state_dict())
    assert ask(restored, START, "cat 99") == [prediction]


def test_closes_only_its_own_engine(compact_tokenizer: Any) -> None:
    for owns in (False, True):
        engine = WritingEngine(compact_tokenizer, always(ACT))
        model = LMWorldModel(engine, compact_tokenizer, owns_engine=owns)
        model.close()
        assert engine.closed == owns


def test_bad_arguments_are_refused(compact_tokenizer: Any, chat_tokenizer: Any) -> None:
    engine = WritingEngine(compact_tokenizer, always(ACT))
    with pytest.raises(InvalidArgumentError, match="max_tokens"):
        LMWorldModel(engine, compact_tokenizer, context_length=100, max_tokens=100)
    with pytest.raises(InvalidArgumentError, match="no token"):
        LMWorldModel(engine, chat_tokenizer)
