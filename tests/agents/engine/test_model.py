"""The lean forward pass equals Hugging Face's."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import tiny_models  # noqa: E402

from obsspec_gym.agents.engine.embedded.batch import Batch, Span  # noqa: E402
from obsspec_gym.agents.engine.embedded.kv import KVRows, row_length  # noqa: E402
from obsspec_gym.agents.engine.embedded.model import LeanModel, rows_are_independent  # noqa: E402
from obsspec_gym.agents.engine.embedded.shape import ModelShape  # noqa: E402
from obsspec_gym.agents.engine.embedded.weights import ModelWeights  # noqa: E402
from obsspec_gym.errors import InvalidArgumentError  # noqa: E402

MODELS = [tiny_models.qwen3, tiny_models.qwen3_biased, tiny_models.qwen2, tiny_models.llama]
CPU = torch.device("cpu")


def lean(model, dtype):
    shape = ModelShape.of(model.config)
    weights = ModelWeights.allocate(shape, dtype, CPU)
    weights.load(dict(model.named_parameters()))
    weights.load_rope(model)
    return LeanModel(weights), KVRows(shape, dtype, CPU)


def run_in_chunks(model, rows, ids, chunks):
    """All logits, from spans that stay within their size class, in random chunks."""
    row, at, logits = None, 0, []
    while at < len(ids):
        length = row_length(at + 1)
        if row is None:
            row = rows.take(1)
        elif rows.classes[row.size_class].length != length:
            row = rows.moved(row, at, length)
        count = min(chunks.randint(1, 70), length - at, len(ids) - at)
        batch = Batch([Span(row, at, ids[at : at + count], count)], model.shape, rows)
        logits.append(model.forward(batch)[:count])
        at += count
    return torch.cat(logits)


@pytest.fixture
def precise_norms(monkeypatch):
    """Hugging Face's norms compute in float32 whatever the model is in."""
    from transformers.models.llama.modeling_llama import LlamaRMSNorm
    from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))

    for norm in (LlamaRMSNorm, Qwen2RMSNorm, Qwen3RMSNorm):
        monkeypatch.setattr(norm, "forward", forward)


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
def test_logits_equal_hugging_faces(make, dtype, tolerance, precise_norms):
    model = make().to(dtype)
    ids = [random.Random(0).randrange(tiny_models.VOCABULARY) for _ in range(150)]
    forward, rows = lean(model, dtype)
    with torch.inference_mode():
        expected = model(torch.tensor([ids])).logits[0]
        got = run_in_chunks(forward, rows, ids, random.Random(1))
    assert expected.abs().max() > 1
    torch.testing.assert_close(got, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_are_independent_here(dtype):
    forward, _ = lean(tiny_models.qwen3(), dtype)
    assert rows_are_independent(forward.weights)


def test_other_architectures_are_refused_by_name():
    from transformers import GPT2Config

    with pytest.raises(InvalidArgumentError, match="llama, qwen2, qwen3, got 'gpt2'"):
        ModelShape.of(GPT2Config())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"hidden_act": "gelu"}, "hidden_act 'silu', got 'gelu'"),
        ({"use_sliding_window": True, "max_window_layers": 0, "sliding_window": 8}, "full attention in all layers"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "got 'dynamic'"),
    ],
)
def test_features_that_are_missing_are_refused_by_name(changes, sentence):
    from transformers import Qwen3Config

    with pytest.raises(InvalidArgumentError, match=sentence):
        ModelShape.of(Qwen3Config(**changes))


def test_a_state_that_does_not_fit_changes_nothing():
    model = tiny_models.qwen3()
    forward, _ = lean(model, torch.float32)
    before = forward.weights.block.clone()
    state = dict(model.named_parameters())
    name = "model.layers.1.mlp.down_proj.weight"
    with pytest.raises(InvalidArgumentError, match=f"parameter named '{name}'"):
        forward.weights.load({k: v + 1 for k, v in state.items() if k != name})
    with pytest.raises(InvalidArgumentError, match="of shape"):
        forward.weights.load({k: v.flatten() + 1 for k, v in state.items()})
    assert torch.equal(forward.weights.block, before)
