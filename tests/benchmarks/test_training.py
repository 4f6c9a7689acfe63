"""The benchmarks of training, at a size at which they measure nothing but run from end to end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from obsspec_gym.benchmarks import run
from obsspec_gym.envs.sandbox.bubblewrap import bubblewrap_available
from obsspec_gym.errors import InvalidArgumentError

pytest.importorskip("trl")

# TRL uses a name that transformers has replaced, and calls its own feature experimental.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:You are using 'environment_factory':UserWarning"),
]


@pytest.fixture
def sandbox() -> str:
    return "bubblewrap" if bubblewrap_available() is None else "local"


def measure(name: str, **options: Any) -> dict[str, Any]:
    return run(name, full=False, options=options, report=lambda line: None)


def test_reward_is_measured_before_and_after_each_training(sandbox: str, tmp_path: Path) -> None:
    result = measure(
        "train", seeds="0,1", steps=1, tasks=1, group=2, evaluation=4, envs=4, sandbox=sandbox, out=str(tmp_path),
        driver="thread",
    )  # fmt: skip
    first, second = result["by_seed"]
    assert (first["seed"], second["seed"]) == (0, 1)
    assert first["reward_before"] == second["reward_before"]  # the same policy, tasks and noise
    assert set(first["families"]) == {"archive", "count", "permissions"}
    for name in ("reward_before", "reward_after", "reward_gain"):
        assert result[name] == pytest.approx((first[name] + second[name]) / 2)
    assert result["reward_gain"] == pytest.approx(result["reward_after"] - result["reward_before"])
    saved = json.loads((tmp_path / "result.json").read_text())
    assert {"benchmark": "train", **saved} == result
    assert (tmp_path / "seed_1" / "log.jsonl").is_file()
    assert (tmp_path / "learning.png").read_bytes().startswith(b"\x89PNG")


def test_three_loops_play_the_same_tasks(sandbox: str, tmp_path: Path) -> None:
    result = measure(
        "loops", steps=1, envs=2, group=2, max_turns=2, latency="none", pace=0, sandbox=sandbox,
        world_model="memory", out=str(tmp_path),
    )  # fmt: skip
    for loop in ("trl", "off", "on"):
        assert result[loop]["seconds_per_step"]["repeats"] == 1
        assert result[loop]["completion_tokens"] > 2
    assert result["off"]["completion_tokens"] == result["on"]["completion_tokens"]  # the same rollouts
    assert result["off_vs_trl"] * result["on_vs_off"] == pytest.approx(result["on_vs_trl"])


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("train", {"seeds": "x"}, "seeds must be integers >= 0, separated by commas, got 'x'"),
        ("train", {"steps": 0}, "evaluation and steps must be >= 1, got 200 and 0"),
        ("loops", {"group": 3}, "envs must be a multiple of group, got 8 and 3"),
        ("loops", {"steps": 0}, "repeats and steps must be >= 1, got 1 and 0"),
    ],
)
def test_bad_options_are_one_sentence(name: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidArgumentError, match=sentence):
        measure(name, **options)


def test_a_completion_is_a_call_or_an_answer() -> None:
    from obsspec_gym.agents.loading import model_directory
    from obsspec_gym.benchmarks.loops import CHAT_TEMPLATE, _tokenizer

    tokenizer = _tokenizer(model_directory("shipped", "policy"))

    def read(text: str) -> Any:
        return tokenizer.parse_response(tokenizer(text, add_special_tokens=False)["input_ids"], prefix=[])

    call = {"type": "function", "function": {"name": "bash", "arguments": {"command": "ls  -a"}}}
    assert read("ls  -a<|end|>") == {"role": "assistant", "content": "", "tool_calls": [call]}
    assert read("submit 4<|end|>") == {"role": "assistant", "content": "submit 4"}
    assert read("ls -") == {"role": "assistant", "content": "ls -"}  # cut

    shipped = model_directory("shipped", "policy")
    messages = [
        {"role": "user", "content": "Do it."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "bash", "content": "a\n[exit 0] ~"},
    ]
    from transformers import AutoTokenizer

    own = AutoTokenizer.from_pretrained(shipped)
    expected = own.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == expected
    assert tokenizer.chat_template == CHAT_TEMPLATE
