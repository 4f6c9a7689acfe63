"""A tiny pair of language models with random weights, in directories as the shipped ones are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from obsspec_gym.envs.sandbox.bubblewrap import bubblewrap_available


@pytest.fixture(autouse=True)
def needs_bubblewrap() -> None:
    """The commands' default sandbox."""
    reason = bubblewrap_available()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def tiny_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Directories of a policy and a world model that have learnt nothing."""
    from transformers import Qwen3Config, Qwen3ForCausalLM, set_seed

    tokenizer = byte_tokenizer()
    directories = tmp_path_factory.mktemp("policy"), tmp_path_factory.mktemp("world_model")
    for seed, directory in enumerate(directories):
        set_seed(seed)
        config = Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=16,
            max_position_embeddings=2048,
            initializer_range=0.3,
        )
        Qwen3ForCausalLM(config).save_pretrained(directory)
        tokenizer.save_pretrained(directory)
    return directories


def byte_tokenizer() -> Any:
    """A token for every byte, and the compact dialogue's control tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    from obsspec_gym.agents.dialogue import ACT, COMPACT_CHAT_TEMPLATE, END, OBS, PAD, TASK

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = [TASK, ACT, OBS, END, PAD]
    trainer = trainers.BpeTrainer(
        vocab_size=len(alphabet) + len(special), initial_alphabet=alphabet, special_tokens=special, show_progress=False
    )
    tokenizer.train_from_iterator([], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PAD, chat_template=COMPACT_CHAT_TEMPLATE
    )
