"""Tiny tokenizers built on the spot, with Qwen3's chat template and with the compact dialogue."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

CORPUS = [
    "<tool_call>\n{\"name\": \"bash\", \"arguments\": {\"command\": \"ls -la | wc -l\"}}\n</tool_call>",
    "user\n<tool_response>\nREADME.md\nsrc\ntests\n[exit 0] ~\n</tool_response>",
    "assistant\nHow many files are there? Count them and submit the number. cat grep find echo submit",
    "\n\n\n[exit 1] ~/src\n  indented text\n\n",
]  # fmt: skip


def build_tokenizer(special: list[str], added: list[str], eos: str, chat_template: str) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=special,
        show_progress=False,
        min_frequency=1,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken(name, special=False, normalized=False) for name in added])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=eos, pad_token=special[-1], chat_template=chat_template
    )


def build_chat_tokenizer(template: str) -> Any:
    """Qwen's control tokens over a tiny vocabulary, with one of the chat templates that TRL ships."""
    trl = find_spec("trl")  # only a file of it is needed: importing it takes many seconds
    assert trl is not None
    assert trl.origin is not None
    path = Path(trl.origin).parent / "chat_templates" / f"{template}.jinja"
    return build_tokenizer(
        ["<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|endoftext|>"],
        ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"],
        "<|im_end|>",
        path.read_text(encoding="utf-8"),
    )


@pytest.fixture(scope="session")
def make_chat_tokenizer() -> Callable[[str], Any]:
    """Builds a tokenizer with the chat template of that name."""
    return build_chat_tokenizer


@pytest.fixture(scope="session")
def chat_tokenizer() -> Any:
    """A tokenizer with Qwen3's chat template."""
    return build_chat_tokenizer("qwen3")


@pytest.fixture(scope="session")
def compact_tokenizer() -> Any:
    """The compact dialogue's control tokens over a tiny vocabulary."""
    from obsspec_gym.agents.dialogue import ACT, COMPACT_CHAT_TEMPLATE, END, OBS, PAD, TASK

    return build_tokenizer([TASK, ACT, OBS, END, PAD], [], END, COMPACT_CHAT_TEMPLATE)
