"""The pair that comes with the package: small, in the compact dialogue, and able to begin."""

import asyncio
import json

import pytest

pytest.importorskip("transformers")

from obsspec_gym.agents.dialogue import CompactDialogue
from obsspec_gym.agents.history import History
from obsspec_gym.agents.lm_policy import LMPolicy, load_policy
from obsspec_gym.agents.loading import SHIPPED, load_tokenizer
from obsspec_gym.agents.tokens import TextCodec
from obsspec_gym.agents.world_model.loading import load_world_model
from obsspec_gym.envs.observation import ObservationFormat
from obsspec_gym.envs.tasks import get_suite
from obsspec_gym.types import EpisodeId, Sampling

ROLES = ("policy", "world_model")
OK = "[exit 0] ~"


def call(command: str) -> dict[str, object]:
    return {"role": "assistant", "tool_calls": [{"function": {"name": "bash", "arguments": {"command": command}}}]}


CONVERSATION = [
    {"role": "user", "content": "Count."},
    call("ls"),
    {"role": "tool", "content": f"a\n{OK}"},
    call("submit 1"),
    {"role": "tool", "content": "[submitted]"},
]


def test_both_together_are_at_most_12_megabytes() -> None:
    assert sum((SHIPPED / role / "model.safetensors").stat().st_size for role in ROLES) <= 12_000_000


def test_both_share_one_tokenizer_and_name_their_observation_format() -> None:
    assert len({(SHIPPED / role / "tokenizer.json").read_text() for role in ROLES}) == 1
    for role in ROLES:
        config = json.loads((SHIPPED / role / "config.json").read_text())
        assert config["observation_format"] == ObservationFormat.version


@pytest.mark.parametrize("role", ROLES)
def test_the_chat_template_writes_the_compact_dialogue(role: str) -> None:
    tokenizer = load_tokenizer(SHIPPED / role)

    def render(number: int, prompt: bool) -> str:
        return str(
            tokenizer.apply_chat_template(CONVERSATION[:number], tools=[], add_generation_prompt=prompt, tokenize=False)
        )

    assert render(1, True) == "<|task|>Count.<|act|>"
    assert render(3, True) == f"<|task|>Count.<|act|>ls<|end|><|obs|>a\n{OK}<|act|>"
    assert render(5, False).endswith(f"{OK}<|act|>submit 1<|end|><|obs|>[submitted]")


def test_the_template_and_the_dialogue_give_the_same_tokens() -> None:
    tokenizer = load_tokenizer(SHIPPED / "policy")
    dialogue = CompactDialogue(TextCodec(tokenizer))
    written = (*dialogue.opening("Count."), *dialogue.write("ls"), *dialogue.increment(f"a\n{OK}", closed=True))
    text = tokenizer.apply_chat_template(CONVERSATION[:3], tools=[], add_generation_prompt=True, tokenize=False)
    assert list(written) == tokenizer.encode(str(text), add_special_tokens=False)


@pytest.mark.parametrize("text", ["", "naïve → 日本 \U0001f600", "a\r\n\tb  c", "1 22 333 4444", "<|end|>"])
def test_the_tokenizer_gives_back_any_text(text: str) -> None:
    codec = TextCodec(load_tokenizer(SHIPPED / "policy"))
    assert codec.text(codec.plain(text)) == text


def test_numbers_are_pairs_of_digits() -> None:
    tokenizer = load_tokenizer(SHIPPED / "policy")
    for number in range(100):
        assert len(tokenizer.encode(f"{number}", add_special_tokens=False)) == 1
    assert len(tokenizer.encode("1234", add_special_tokens=False)) == 2


def test_the_policy_begins_by_looking_and_the_world_model_foresees_an_edit() -> None:
    instruction = get_suite("basics/config").task(0).instruction
    policy = load_policy("shipped", driver="inline")
    world_model = load_world_model("shipped", driver="inline")
    assert isinstance(policy, LMPolicy)
    greedy = policy.with_sampling(Sampling(temperature=0.0, max_tokens=32))

    async def run() -> tuple[object, object]:
        history = History.start(EpisodeId("t"), instruction, greedy.encode_observation(None, instruction))
        first = greedy.parse(await greedy.generate(history, seed=0))
        seen = history.act("ls").observe(f"alpha.conf\ncheck\nrules\nserve\n{OK}")
        checked = seen.act("./check").observe("alpha.conf: port is 95, limit 60\n[exit 1] ~")
        [prediction] = await world_model.predict(checked, "sed -i 's/port=95/port=60/' alpha.conf", 1)
        return first, (prediction.observation, prediction.ends)

    try:
        assert asyncio.run(run()) == ("ls", (OK, False))
    finally:
        policy.close()
        world_model.close()
