"""Policy and world model on the embedded engine, with a tiny model that has learnt three episodes by heart."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from obsspec_gym.agents.history import History
from obsspec_gym.agents.lm_policy import LMPolicy, load_policy
from obsspec_gym.agents.world_model import CascadeWorldModel, LMWorldModel, MemoryWorldModel, load_world_model
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.types import EpisodeId, MalformedCall, Outcome, Priority, Sampling, Transition

# The first test pays for importing torch and transformers, which takes minutes on a busy machine.
pytestmark = pytest.mark.timeout(600)

DONE = "[exit 0] ~"
EPISODES = [
    ("How many files?", [("ls", f"a\nb\n{DONE}"), ("submit 2", "[submitted]")]),
    ("What does a say?", [("cat a", f"hello 12\n{DONE}"), ("submit hello", "[submitted]")]),
    ("Where are you?", [("pwd", f"/home/agent\n{DONE}"), ("submit /home/agent", "[submitted]")]),
]


def random_model(tokenizer: Any, context: int = 512) -> Any:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=32, max_position_embeddings=context,
        tie_word_embeddings=True, eos_token_id=tokenizer.eos_token_id, pad_token_id=0, bos_token_id=None,
    )  # fmt: skip
    return Qwen3ForCausalLM(config)


@pytest.fixture(scope="module")
def model_directory(tmp_path_factory: pytest.TempPathFactory, compact_tokenizer: Any) -> Path:
    """One model for both parts: one token sequence of an episode trains both."""
    import torch

    model = random_model(compact_tokenizer)
    rows = [compact_tokenizer.encode(dialogue(*episode), add_special_tokens=False) for episode in EPISODES]
    width = max(map(len, rows))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    labels = torch.tensor([row + [-100] * (width - len(row)) for row in rows])
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(60):
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.2
    directory = tmp_path_factory.mktemp("model")
    model.save_pretrained(directory)
    compact_tokenizer.save_pretrained(directory)
    return directory


def dialogue(task: str, turns: list[tuple[str, str]]) -> str:
    middle = "".join(f"<|act|>{command}<|end|><|obs|>{observation}" for command, observation in turns)
    return f"<|task|>{task}{middle}<|end|>"


async def play(policy: LMPolicy, task: str, outputs: list[str], seed: int = 0) -> History:
    """An episode on a world that answers ``outputs``."""
    history = History.start(EpisodeId(task), task, policy.encode_observation(None, task))
    for output in outputs:
        completion = await policy.generate(history, seed=seed)
        history = history.act(policy.parse(completion), completion.token_ids)
        history = history.observe(output, policy.encode_observation(history, output))
    return history


def test_the_policy_acts_as_it_was_taught(model_directory: Path) -> None:
    policy = load_policy(model_directory, driver="inline", sampling=Sampling(temperature=0, max_tokens=40))
    assert policy.addressed_noise

    async def main() -> list[History]:
        return [await play(policy, task, [out for _, out in turns]) for task, turns in EPISODES]

    for history, (_, turns) in zip(asyncio.run(main()), EPISODES, strict=True):
        assert [(turn.action, turn.observation) for turn in history.turns] == turns
    policy.close()


def test_the_same_seed_gives_the_same_tokens_alone_and_beside_others(model_directory: Path) -> None:
    policy = load_policy(model_directory, driver="inline", sampling=Sampling(temperature=1.5, max_tokens=12))

    async def main() -> None:
        alone = [await play(policy, task, [DONE] * 3, seed=5) for task, _ in EPISODES]
        beside = await asyncio.gather(*(play(policy, task, [DONE] * 3, seed=5) for task, _ in EPISODES))
        assert [h.token_ids for h in alone] == [h.token_ids for h in beside]
        other = await play(policy, EPISODES[0][0], [DONE] * 3, seed=6)
        assert other.token_ids != alone[0].token_ids

    asyncio.run(main())
    policy.close()


def test_a_completion_at_the_length_limit_is_malformed_and_the_episode_goes_on(model_directory: Path) -> None:
    policy = load_policy(model_directory, driver="inline", sampling=Sampling(temperature=0, max_tokens=1))
    history = asyncio.run(play(policy, EPISODES[0][0], [DONE]))
    assert isinstance(history.last_action, MalformedCall)
    [end] = policy.dialogue.stop_token_ids
    assert history.segment[0] == end
    policy.close()


def test_a_prompt_that_fills_the_context_is_refused(model_directory: Path) -> None:
    policy = load_policy(model_directory, driver="inline")
    history = History.start(EpisodeId("t"), "x", policy.encode_observation(None, "12 " * 400))
    with pytest.raises(InvalidArgumentError, match="context of 512"):
        policy.generate(history, seed=0)
    policy.close()


def test_the_world_model_knows_what_comes(model_directory: Path) -> None:
    model = load_world_model(model_directory, driver="inline", max_tokens=60)
    assert isinstance(model, LMWorldModel)

    async def main() -> None:
        for task, turns in EPISODES:
            history = History.start(EpisodeId(task), task)
            for command, observation in turns:
                best, *others = await model.predict(history, command, 3)
                assert (best.observation, best.ends) == (observation, observation == "[submitted]")
                assert best.probability > 0.4
                assert all(0 <= p.probability <= best.probability for p in others)
                if len(observation) > 12:
                    [renewed, *_] = await model.predict(history, command, 1, partial=observation[:3])
                    assert renewed.observation == observation
                history = history.act(command).observe(observation)

    asyncio.run(main())
    model.close()


def test_a_cancelled_prediction_leaves_nothing_in_the_engine(model_directory: Path) -> None:
    model = load_world_model(model_directory, driver="inline", max_tokens=200)
    assert isinstance(model, LMWorldModel)

    async def main() -> None:
        task = asyncio.create_task(model.predict(History.start(EpisodeId("t"), "do"), "make", 4))
        while model.engine.load().running == 0:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for _ in range(10):
            await asyncio.sleep(0)
        load = model.engine.load()
        assert (load.running, load.waiting) == (0, 0)

    asyncio.run(main())
    model.close()


def test_memory_first_then_the_model(model_directory: Path) -> None:
    lm = load_world_model(model_directory, driver="inline", max_tokens=60)
    cascade = CascadeWorldModel([MemoryWorldModel(), lm], sure=0.3)
    task, [(command, observation), *_] = EPISODES[0]
    history = History.start(EpisodeId(task), task)

    async def main() -> list[str]:
        sources = []
        for _ in range(2):
            [prediction] = await cascade.predict(history, command, 1)
            assert prediction.observation == observation
            sources.append(prediction.source)
            cascade.observe(Transition(history.act(command), Outcome(observation), 0.1))
        return sources

    assert asyncio.run(main()) == ["lm", "memory:prefix"]
    cascade.close()


def test_speculative_and_committed_completions_are_the_same(model_directory: Path) -> None:
    policy = load_policy(model_directory, driver="inline", sampling=Sampling(max_tokens=12))
    history = History.start(EpisodeId("t"), "do", policy.encode_observation(None, "How many files?"))

    async def main() -> None:
        committed = await policy.generate(history, seed=3)
        speculative = policy.generate(history, seed=3, priority=Priority.SPECULATIVE, draft=committed.token_ids)
        speculative.promote()
        assert (await speculative).token_ids == committed.token_ids

    asyncio.run(main())
    policy.close()


def test_a_chat_model_talks_in_its_own_template(tmp_path: Path, chat_tokenizer: Any) -> None:
    random_model(chat_tokenizer, context=2048).save_pretrained(tmp_path)
    chat_tokenizer.save_pretrained(tmp_path)
    policy = load_policy(tmp_path, driver="inline", sampling=Sampling(max_tokens=8), system_prompt="Be brief.")
    history = asyncio.run(play(policy, "do it", [DONE, DONE]))
    assert all(isinstance(turn.action, MalformedCall) for turn in history.turns), "nothing was ever taught to it"
    text = chat_tokenizer.decode(list(history.token_ids))
    assert text.startswith("<|im_start|>system\nBe brief.\n\n# Tools")
    assert text.count(f"<tool_response>\n{DONE}\n</tool_response><|im_end|>\n<|im_start|>assistant\n") == 2
    policy.close()


def test_there_must_be_a_model(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"config\.json"):
        load_policy(tmp_path)
    with pytest.raises(InvalidArgumentError, match=r"config\.json"):
        load_world_model(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InvalidArgumentError):
        load_policy(tmp_path)


def test_a_memory_needs_no_model() -> None:
    assert isinstance(load_world_model("memory"), MemoryWorldModel)
    assert isinstance(load_world_model("memory", min_probability=0.5), CascadeWorldModel)
