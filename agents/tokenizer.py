"""The one tokenizer of both models: byte-level BPE over words, two-digit numbers, and runs of everything else."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from obsspec_gym.agents.dialogue import ACT, COMPACT_CHAT_TEMPLATE, END, OBS, PAD, TASK

VOCABULARY = 768

CONTEXT = 2048
"""Tokens that both models can attend to."""


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Learns the vocabulary. Numbers are pairs of digits from the left, which makes them easy to copy."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(r"[a-zA-Z]+|[0-9]{1,2}|[^a-zA-Z0-9]+"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, TASK, ACT, OBS, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # Every pair of digits is worth a token, however rare it is in the data.
    pairs = " ".join(f"{pair:02d}" for pair in range(100))
    tokenizer.train_from_iterator([*texts, *[pairs] * 2000], trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, context: int) -> None:
    """Writes the tokenizer as transformers reads it, with the chat template of the compact dialogue."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": PAD,
        "additional_special_tokens": [TASK, ACT, OBS],
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
        "chat_template": COMPACT_CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
