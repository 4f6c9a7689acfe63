"""What of the vLLM engine can be tested without vLLM: options, what vLLM is told, padded heads."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import tiny_models  # noqa: E402

from obsspec_gym.agents.engine.vllm import VLLMEngine  # noqa: E402
from obsspec_gym.agents.engine.vllm.heads import HeadPadding  # noqa: E402
from obsspec_gym.agents.engine.vllm.rows import CHUNK, QUANTA, IndependentRows  # noqa: E402
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
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
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


class Library:
    """Linear layers that add in another order at some numbers of rows, as libraries of matrix products do.

    Args:
        quantum: At its multiples, up to ``CHUNK``, they add in the same order.
    """

    def __init__(self, quantum: int) -> None:
        self.quantum = quantum
        self.asked: list[int] = []

    def __call__(self, x: Any, weight: Any, bias: Any) -> Any:
        self.asked.append(len(x))
        block = 16 if len(x) % self.quantum == 0 and len(x) <= CHUNK else 7 + len(x) % 3
        products = x[:, None, :] * weight
        parts = [part.sum(-1) for part in products.split(block, dim=-1)]
        total = sum(parts[1:], parts[0])
        return total if bias is None else total + bias


@given(st.sampled_from(QUANTA), st.integers(1, 150), st.lists(st.integers(1, 40), max_size=4), st.booleans())
def test_a_row_comes_out_the_same_whatever_is_beside_it(
    quantum: int, count: int, cuts: list[int], with_bias: bool
) -> None:
    noise = torch.Generator().manual_seed(count)
    weight, bias = torch.randn(5, 64, generator=noise), torch.randn(5, generator=noise) if with_bias else None
    rows = torch.randn(count, 64, generator=noise)
    linear = IndependentRows(Library(quantum), quanta := {})
    together = linear(rows, weight, bias)
    assert quanta == {(64, 5, with_bias): quantum}
    alone = torch.cat([linear(row[None], weight, bias) for row in rows])
    cuts = sorted(min(cut, count) for cut in cuts)
    parts = torch.cat([linear(part, weight, bias) for part in rows.tensor_split(cuts)])
    assert torch.equal(together, alone)
    assert torch.equal(together, parts)
    assert torch.equal(linear(rows[None], weight, bias)[0], together)
    torch.testing.assert_close(together, torch.nn.functional.linear(rows, weight, bias), atol=1e-4, rtol=1e-4)


def test_what_was_found_for_a_size_is_not_looked_for_again() -> None:
    weight, quanta = torch.randn(5, 64, generator=torch.Generator().manual_seed(0)), {}
    rows = torch.ones(3, 64)
    first, second = Library(4), Library(4)
    for library in (first, second):
        IndependentRows(library, quanta)(rows, weight, None)
    assert len(first.asked) > 20
    assert second.asked == [CHUNK, 4]


def test_rows_that_depend_on_their_place_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    def linear(x: Any, weight: Any, bias: Any) -> Any:
        return x @ weight.T + torch.arange(len(x))[:, None]

    IndependentRows(linear, {})(torch.ones(2, 64), torch.ones(5, 64), None)
    assert "a row of a 5 x 64 product depends on its place" in caplog.text


def test_arithmetic_is_made_independent_of_the_batch_in_float32_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("VLLM_CPU_ATTN_SPLIT_KV", raising=False)
    for dtype, split in (("float32", "0"), ("bfloat16", None)):
        settings = Settings(dtype=dtype)
        assert settings.row_independent is (split == "0")
        with settings.environment():
            assert os.environ.get("VLLM_CPU_ATTN_SPLIT_KV") == split
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert not Settings().row_independent
