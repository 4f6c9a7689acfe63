"""How vLLM runs: options, checked before anything is started, and what vLLM is told."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch

from obsspec_gym.errors import InvalidArgumentError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

DtypeName = Literal["float32", "bfloat16", "float16"]
OwnDrafts = Literal["ngram", "suffix"]

_EXTENSION = "obsspec_gym.agents.engine.vllm.worker.WorkerExtension"
_OWN_DRAFTS: dict[str, dict[str, Any]] = {
    "ngram": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 4},
    "suffix": {"method": "suffix", "num_speculative_tokens": 8},
}
_CPU_BLOCK_TOKENS = 32
_CPU_KV_BYTES = 256 * 2**20
_environment_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Shape:
    """What of a model bounds its requests.

    Attributes:
        vocabulary: Number of token ids.
        context: Positions a request may take, prompt and completion together.
        kv_numbers: Numbers that keys and values of one token are made of.
    """

    vocabulary: int
    context: int
    kv_numbers: int

    @classmethod
    def of(cls, config: PretrainedConfig, context: int | None = None) -> Shape:
        """Reads a model's configuration.

        Args:
            config: Of a transformers causal language model.
            context: A smaller bound on its positions.

        Raises:
            InvalidArgumentError: If that bound is none, or the model says none of its own.
        """
        text = config.get_text_config()
        heads = text.num_attention_heads
        own = text.max_position_embeddings
        if context is not None and not 2 <= context <= own:
            raise InvalidArgumentError(f"context must be in 2..{own} tokens, got {context}")
        sizes = text.to_dict()
        head = sizes.get("head_dim") or text.hidden_size // heads
        kv_heads = sizes.get("num_key_value_heads") or heads
        return cls(text.vocab_size, context or own, 2 * text.num_hidden_layers * kv_heads * head)


@dataclass(frozen=True, slots=True)
class Settings:
    """How an engine runs; see :class:`~obsspec_gym.agents.engine.vllm.VLLMEngine`.

    Raises:
        InvalidArgumentError: If one is out of range.
    """

    dtype: DtypeName = "float32"
    own_drafts: OwnDrafts | None = None
    max_running: int = 64
    max_batch_tokens: int = 2048
    kv_cache_bytes: int | None = None
    threads: int = 1
    device: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check(self.dtype in get_args(DtypeName), f"dtype must be one of {_names(DtypeName)}, got {self.dtype!r}")
        _check(
            self.own_drafts is None or self.own_drafts in get_args(OwnDrafts),
            f"own_drafts must be one of {_names(OwnDrafts)} or None, got {self.own_drafts!r}",
        )
        for name in ("max_running", "max_batch_tokens", "threads"):
            value = getattr(self, name)
            _check(value >= 1, f"{name} must be at least 1, got {value}")
        _check(
            self.max_batch_tokens >= self.max_running,
            f"max_batch_tokens must be at least max_running ({self.max_running}): each running request takes part in "
            f"a step with a token, got {self.max_batch_tokens}",
        )
        _check(
            self.kv_cache_bytes is None or self.kv_cache_bytes > 0,
            f"kv_cache_bytes must be positive, got {self.kv_cache_bytes}",
        )

        kind = None if self.device is None else torch.device(self.device).type
        there = "cpu" if self.on_cpu else "cuda"
        _check(kind in (None, there), f"vLLM as it is installed computes on {there}, got device={self.device!r}")

    @property
    def on_cpu(self) -> bool:
        """Whether vLLM computes on the CPU."""
        return not torch.cuda.is_available()

    @property
    def row_independent(self) -> bool:
        """Whether what is computed of a token is to be the same bits whatever is computed beside it.

        It is as long as a context fits one tile of vLLM's attention (docs/engines.md says which does); beyond, the
        last bits depend on how much of a prompt is computed at once. On the CPU it takes linear layers that add in the
        same order at every number of rows (:class:`~obsspec_gym.agents.engine.vllm.rows.IndependentRows`), and
        attention that splits no sequence between threads. It is offered in float32.
        """
        return self.on_cpu and self.dtype == "float32"

    @property
    def reproducible(self) -> bool:
        """Whether a completion is a pure function of weights, prompt, sampling and seed.

        It is where arithmetic does not depend on the batch; where its last bits do, in long contexts, a token can,
        rarely, differ, as on the embedded engine where that is not ``bit_exact``. Drafts of vLLM's own change which of
        a seed's numbers is used for what; whether there are any depends on what else is served.
        """
        return self.row_independent and self.own_drafts is None

    def arguments(self, directory: Path, shape: Shape, *, load: bool) -> dict[str, Any]:
        """Arguments of vLLM's ``AsyncEngineArgs``.

        Args:
            directory: The model's.
            shape: The model's.
            load: Whether the weights are in the directory; otherwise they come later.
        """
        arguments: dict[str, Any] = {
            "model": str(directory),
            "skip_tokenizer_init": True,
            "dtype": self.dtype,
            "max_model_len": shape.context,
            "max_num_seqs": self.max_running,
            "max_num_batched_tokens": self.max_batch_tokens,
            "enable_prefix_caching": True,
            "scheduling_policy": "priority",
            "logprobs_mode": "processed_logprobs",
            "generation_config": "vllm",  # no sampling defaults from the model's directory
            "worker_extension_cls": _EXTENSION,
            "disable_log_stats": True,
            "use_tqdm_on_load": False,
            "load_format": "auto" if load else "dummy",
        }
        if self.own_drafts is not None:
            arguments["speculative_config"] = _OWN_DRAFTS[self.own_drafts]
        if self.kv_cache_bytes is not None:
            arguments["kv_cache_memory_bytes"] = self.kv_cache_bytes
        elif self.on_cpu:
            arguments["kv_cache_memory_bytes"] = max(_CPU_KV_BYTES, 4 * shape.context * shape.kv_numbers * 4)
        if self.on_cpu:
            # A prompt is computed in one step there: seeds and split prompts do not go together.
            tokens = max(self.max_batch_tokens, shape.context)
            arguments |= {"max_num_batched_tokens": tokens, "enable_chunked_prefill": False}
            arguments |= {"enforce_eager": True, "block_size": _CPU_BLOCK_TOKENS}
        else:
            arguments["weight_transfer_config"] = {"backend": "ipc"}
        return arguments | dict(self.options)

    @contextlib.contextmanager
    def environment(self) -> Iterator[None]:
        """Environment variables for vLLM's process, which inherits them; this one's are as before afterwards."""
        # One process for scheduler and model: "multiprocessing" would be a further one.
        variables = {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"),
            "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # standard output is the program's
        }
        if self.on_cpu:
            threads = str(self.threads)
            variables |= {"OMP_NUM_THREADS": threads, "VLLM_CPU_OMP_THREADS_BIND": "nobind", "TORCHDYNAMO_DISABLE": "1"}
            if self.row_independent:
                variables |= {"VLLM_CPU_ATTN_SPLIT_KV": "0"}
        else:
            # Handles of GPU memory are unpickled there; they come from this process only.
            variables["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
            index = torch.device(self.device or "cuda").index
            if index is not None:
                visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
                variables["CUDA_VISIBLE_DEVICES"] = (
                    visible[index] if index < len(visible) and visible[0] else str(index)
                )
        with _environment_lock:
            before = dict(os.environ)
            os.environ.update(variables)
            try:
                yield
            finally:  # vLLM sets some of its own
                for name in os.environ.keys() - before.keys():
                    del os.environ[name]
                for name, value in before.items():
                    if os.environ.get(name) != value:
                        os.environ[name] = value


def _names(literal: Any) -> str:
    return ", ".join(get_args(literal))


def _check(condition: bool, sentence: str) -> None:
    if not condition:
        raise InvalidArgumentError(sentence)
