"""What of the vLLM engine can be tested without vLLM: options, what vLLM is told, padded heads."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import tiny_models  # noqa: E402

from obsspec_gym.agents.engine.vllm import VLLMEngine  # noqa: E402
from obsspec_gym.agents.engine.vllm.heads import HeadPadding  # noqa: E402
from obsspec_gym.agents.engine.vllm.settings import Settings, Shape  # noqa: E402
from obsspec_gym.agents.engine.vllm.source import Source  # noqa: E402
from obsspec_gym.agents.loading import load_engine  # noqa: E402
from obsspec_gym.errors import InvalidArgumentError, MissingExtraError  # noqa: E402


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with GPUs, as far as options are concerned."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed")
def test_without_vllm_the_extra_is_named(tmp_path: Any) -> None:
    with pytest.raises(MissingExtraError, match=r"pip install 'obsspec_gym\[vllm\]'"):
        VLLMEngine(tmp_path)
    with pytest.raises(MissingExtraError, match=r"obsspec_gym\[vllm\]"):
        load_engine(tmp_path, engine="vllm")


def test_completions_are_reproducible_in_float32_on_a_cpu_without_drafts_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert Settings().reproducible
    assert not Settings(dtype="bfloat16").reproducible
    assert not Settings(own_drafts="ngram").reproducible
    assert not Settings(own_drafts="suffix").reproducible
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert not Settings().reproducible


def test_what_a_gpu_is_told(gpus: None, tmp_path: Any) -> None:
    settings = Settings(device="cuda:1", own_drafts="ngram", options={"gpu_memory_utilization": 0.3})
    arguments = settings.arguments(tmp_path, Shape(100, 64, 8), load=False)
    assert arguments["weight_transfer_config"] == {"backend": "ipc"}
    assert arguments["load_format"] == "dummy"
    assert arguments["gpu_memory_utilization"] == 0.3
    assert arguments["speculative_config"]["method"] == "ngram"
    assert "kv_cache_memory_bytes" not in arguments
    assert "enforce_eager" not in arguments


def test_the_environment_is_vllms_alone(gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    monkeypatch.delenv("VLLM_NO_USAGE_STATS", raising=False)
    before = dict(os.environ)
    with Settings(device="cuda:1").environment():
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "7"
        assert os.environ["VLLM_NO_USAGE_STATS"] == "1"
        os.environ["SET_BY_VLLM"] = "1"
        del os.environ["PATH"]
    assert dict(os.environ) == before


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="computes on cpu, got device='cuda:0'"):
        Settings(device="cuda:0")


def test_a_prompt_is_one_step_on_a_cpu(tmp_path: Any) -> None:
    arguments = Settings(max_batch_tokens=64).arguments(tmp_path, Shape(100, 4096, 8), load=True)
    assert (arguments["max_num_batched_tokens"], arguments["enable_chunked_prefill"]) == (4096, False)


def test_heads_that_fit_stay_as_they_are() -> None:
    assert HeadPadding.needed(tiny_models.qwen3(head_dim=64).config) is None
    assert Source.of(tiny_models.qwen3(head_dim=64), on_cpu=True).padding is None
    assert Source.of(tiny_models.qwen3(head_dim=10), on_cpu=False).padding is None


def test_padded_heads_compute_the_same_attention() -> None:
    """Queries and keys after their norms, and what the output projection makes of values."""
    model = tiny_models.qwen3(head_dim=10)
    config, state = model.config, dict(model.named_parameters())
    padding = HeadPadding.needed(config)
    assert padding == HeadPadding(10, 32)
    padded = padding.weights(state)
    assert padding.config(config).head_dim == 32
    assert int(32 * padding.config(config).rope_parameters["partial_rotary_factor"]) == 10
    assert config.head_dim == 10

    hidden = torch.randn(5, config.hidden_size, generator=torch.Generator().manual_seed(0))
    name = "model.layers.1.self_attn."

    def heads(weights: Any, part: str, size: int) -> Any:
        projected = (hidden @ weights[f"{name}{part}_proj.weight"].T).unflatten(-1, (-1, size))
        if part == "v":
            return projected
        scale = torch.rsqrt(projected.square().mean(-1, keepdim=True) + config.rms_norm_eps)
        return projected * scale * weights[f"{name}{part}_norm.weight"]

    with torch.no_grad():
        small = heads(state, "q", 10)[:, :2] @ heads(state, "k", 10).mT / 10**0.5
        large = heads(padded, "q", 32)[:, :2] @ heads(padded, "k", 32).mT / 32**0.5
        torch.testing.assert_close(large, small)
        values = heads(state, "v", 10).repeat_interleave(2, dim=1).flatten(-2)
        wide = heads(padded, "v", 32).repeat_interleave(2, dim=1).flatten(-2)
        projection = f"{name}o_proj.weight"
        torch.testing.assert_close(wide @ padded[projection].T, values @ state[projection].T)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (lambda: tiny_models.qwen2(), "this qwen2 model has heads of 10"),
        (lambda: tiny_models.qwen3(head_dim=600), "this qwen3 model has heads of 600"),
    ],
)
def test_heads_that_cannot_be_padded_are_refused(model: Any, sentence: str) -> None:
    with pytest.raises(InvalidArgumentError, match=sentence):
        HeadPadding.needed(model().config)
