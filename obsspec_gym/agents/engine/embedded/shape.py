"""What the forward pass must know of a model besides its weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from obsspec_gym.errors import InvalidArgumentError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

ARCHITECTURES = ("llama", "qwen2", "qwen3")
_POSITION_DEPENDENT_ROPE = ("dynamic", "longrope")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What the forward pass must know of a model besides its weights.

    Attributes:
        context: Positions the model can take.
        qk_norm: Whether queries and keys are normalised (Qwen3).
        qkv_bias: Whether the query, key and value projections have a bias.
        o_bias: Whether the output projection has one.
    """

    vocabulary: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    context: int
    norm_eps: float
    qk_norm: bool
    qkv_bias: bool
    o_bias: bool
    tied: bool

    @property
    def qk_width(self) -> int:
        """Width of all queries and keys of a token together."""
        return (self.heads + self.kv_heads) * self.head_dim

    @property
    def kv_width(self) -> int:
        """Width of all keys and values of a token together."""
        return 2 * self.kv_heads * self.head_dim

    @property
    def qkv_width(self) -> int:
        """Width of queries, keys and values of a token together."""
        return self.heads * self.head_dim + self.kv_width

    @classmethod
    def of(cls, config: PretrainedConfig) -> ModelShape:
        """Reads a configuration.

        Raises:
            InvalidArgumentError: If it is of an architecture, or has a feature, that the forward pass lacks.
        """
        kind = config.model_type
        if kind not in ARCHITECTURES:
            raise InvalidArgumentError(f"expected a model of type {', '.join(ARCHITECTURES)}, got {kind!r}")
        values = config.to_dict()
        _require(values["hidden_act"] == "silu", f"hidden_act 'silu', got {values['hidden_act']!r}")
        _require(not values.get("mlp_bias"), "an MLP without bias, got mlp_bias=True")
        layer_types = set(values.get("layer_types") or ["full_attention"])
        _require(layer_types == {"full_attention"}, f"full attention in all layers, got {sorted(layer_types)}")
        rope = values["rope_parameters"]["rope_type"]
        _require(rope not in _POSITION_DEPENDENT_ROPE, f"a rotary embedding that is fixed in advance, got {rope!r}")
        bias = bool(values.get("attention_bias"))
        return cls(
            vocabulary=config.vocab_size,
            hidden=config.hidden_size,
            layers=config.num_hidden_layers,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_dim=values.get("head_dim") or config.hidden_size // config.num_attention_heads,
            feed_forward=config.intermediate_size,
            context=config.max_position_embeddings,
            norm_eps=config.rms_norm_eps,
            qk_norm=kind == "qwen3",
            qkv_bias=bias or kind == "qwen2",
            o_bias=bias,
            tied=bool(config.tie_word_embeddings),
        )


def _require(condition: bool, expected: str) -> None:
    if not condition:
        raise InvalidArgumentError(f"expected a model with {expected}")
