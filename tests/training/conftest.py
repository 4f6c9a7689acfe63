"""A tiny Qwen3 with the compact dialogue, which knows the suite's commands but not its answers."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from obsspec_gym.envs.sandbox import make_sandbox
from obsspec_gym.errors import SandboxUnavailableError
from tests.training.parts import dialogue


@pytest.fixture(scope="session")
def sandbox() -> str:
    """The kind of sandbox that works on this machine: bubblewrap where it can."""
    probe = make_sandbox("bubblewrap")
    try:
        probe.start()
    except SandboxUnavailableError:
        return "local"
    finally:
        probe.close()
    return "bubblewrap"


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    from obsspec_gym.agents.dialogue import ACT, COMPACT_CHAT_TEMPLATE, END, OBS, PAD, TASK

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[TASK, ACT, OBS, END, PAD],
        show_progress=False,
    )
    tokenizer.train_from_iterator([dialogue(Random(i)) for i in range(8)], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PAD, chat_template=COMPACT_CHAT_TEMPLATE
    )


@pytest.fixture(scope="session")
def pretrained(tokenizer: Any) -> Any:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=256,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen3ForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    random = Random(0)
    for _ in range(50):
        texts = [dialogue(random) for _ in range(8)]
        ids = tokenizer(texts, add_special_tokens=False, return_tensors="pt", padding=True)
        labels = ids["input_ids"].masked_fill(ids["attention_mask"] == 0, -100)
        loss = model(**ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


@pytest.fixture
def model(pretrained: Any) -> Any:
    """A copy that a test may train."""
    return copy.deepcopy(pretrained)


@pytest.fixture(scope="session")
def model_directory(pretrained: Any, tokenizer: Any, tmp_path_factory: Any) -> Path:
    """The same model, for processes of their own."""
    folder: Path = tmp_path_factory.mktemp("model")
    pretrained.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def make(model: Any, pretrained: Any, tokenizer: Any, tmp_path: Path) -> Iterator[Any]:
    """Makes trainers on the model."""
    from tests.training.trainers import Workshop

    workshop = Workshop(model, tokenizer, tmp_path)
    yield workshop
    workshop.close()
    # A trainer's model has another forward for good, and copies of it compute with the weights of the original.
    assert "forward" not in vars(pretrained), "a trainer was given the model that all tests share, not a copy"
