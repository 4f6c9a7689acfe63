"""Tiny random models, built on the spot."""

from __future__ import annotations

from typing import Any

import torch

VOCABULARY = 61
CONTEXT = 600


def _sizes(**changes: Any) -> dict[str, Any]:
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 36,
        "intermediate_size": 50,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 10,
        "max_position_embeddings": CONTEXT,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    return sizes | changes


def _random(model: torch.nn.Module, seed: int) -> Any:
    """Every parameter random, norms and biases too, and large enough for the tokens to depend on the prompt."""
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=noise) * 0.15)
    return model.eval()


def qwen3(seed: int = 0, **changes: Any) -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    return _random(Qwen3ForCausalLM(Qwen3Config(**_sizes(tie_word_embeddings=True, **changes))), seed)


def qwen3_biased() -> Any:
    return qwen3(3, attention_bias=True)


def qwen2() -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    sizes = _sizes(hidden_size=40)
    return _random(Qwen2ForCausalLM(Qwen2Config(**sizes)), 1)


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = _sizes(num_attention_heads=6, hidden_size=36, head_dim=6)
    return _random(LlamaForCausalLM(LlamaConfig(**sizes)), 2)
