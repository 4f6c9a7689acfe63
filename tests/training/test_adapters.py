"""LoRA: the engine computes with the adapters merged in, and they are trained as they should be."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from obsspec_gym.errors import InvalidArgumentError

pytest.importorskip("trl")
peft = pytest.importorskip("peft")

from obsspec_gym.training.adapters import base_model, plain_parameters  # noqa: E402
from obsspec_gym.training.checkpoints import last_checkpoint  # noqa: E402
from tests.training.trainers import Recorder, Workshop, greedy, moved, reference, weights  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")

TARGETS = ["q_proj", "v_proj", "down_proj"]


def lora(**changes: Any) -> Any:
    """Adapters that change something from the start."""
    options = {"r": 4, "lora_alpha": 8, "target_modules": TARGETS, "init_lora_weights": False, "task_type": "CAUSAL_LM"}
    return peft.LoraConfig(**options | changes)


class Gradients(Recorder):
    """Keeps the gradients of its last backward pass."""

    gradients: dict[str, torch.Tensor]

    def training_step(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        loss = super().training_step(model, *args, **kwargs)
        self.gradients = {n: p.grad.clone() for n, p in self.model.named_parameters() if p.grad is not None}
        return loss


@pytest.mark.parametrize("changes", [{}, {"use_dora": True}, {"modules_to_save": ["o_proj"]}])
def test_merged_weights_compute_the_same_and_leave_the_adapters_alone(pretrained: Any, changes: dict[str, Any]) -> None:
    torch.manual_seed(0)
    adapted = peft.get_peft_model(copy.deepcopy(pretrained), lora(**changes)).eval()
    before = copy.deepcopy(adapted.state_dict())
    plain = copy.deepcopy(pretrained)
    parameters = dict(plain_parameters(adapted))
    assert parameters.keys() >= dict(plain.named_parameters()).keys()
    plain.load_state_dict(parameters, strict=False)
    ids = torch.arange(12)[None]
    with torch.no_grad():
        torch.testing.assert_close(plain(ids).logits, adapted(ids).logits, atol=1e-5, rtol=1e-5)
        assert (plain(ids).logits - pretrained(ids).logits).abs().max() > 0.01
    assert moved(before, adapted.state_dict()) == []
    assert base_model(adapted) is adapted.get_base_model()


def test_adapters_are_merged_in_the_precision_of_their_layer(pretrained: Any) -> None:
    torch.manual_seed(0)
    adapted = peft.get_peft_model(copy.deepcopy(pretrained).bfloat16(), lora())
    parameters = dict(plain_parameters(adapted))
    assert parameters["model.layers.0.self_attn.q_proj.weight"].dtype is torch.float32
    layer = base_model(adapted).model.layers[0].self_attn.q_proj
    expected = layer.base_layer.weight.float() + layer.get_delta_weight("default").float()
    torch.testing.assert_close(parameters["model.layers.0.self_attn.q_proj.weight"], expected, atol=1e-6, rtol=1e-6)


def test_a_step_trains_the_adapters_alone_with_the_gradient_of_the_merged_weights(
    make: Workshop, pretrained: Any
) -> None:
    adapted = make(peft_config=lora(), kind=Gradients, max_steps=1)
    before = weights(adapted)
    plain = make(model=copy.deepcopy(pretrained), kind=Gradients, max_steps=1)
    plain.model.load_state_dict(dict(plain_parameters(adapted.model)), strict=False)
    for trainer in (adapted, plain):
        trainer.train()
    assert [e.completion_ids for e in adapted.trajectories] == [e.completion_ids for e in plain.trajectories]
    changed = moved(before, weights(adapted))
    assert changed
    assert all("lora_" in name for name in changed)
    scaling = 8 / 4
    for layer in range(2):
        name = f"model.layers.{layer}.self_attn.q_proj"
        down = before[f"base_model.model.{name}.lora_A.default.weight"]
        up = before[f"base_model.model.{name}.lora_B.default.weight"]
        full = plain.gradients[f"{name}.weight"]
        for side, expected in (("A", scaling * up.T @ full), ("B", scaling * full @ down.T)):
            found = adapted.gradients[f"base_model.model.{name}.lora_{side}.default.weight"]
            torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-3)

    prompt = list(adapted.trajectories[0].prompt_ids)
    assert greedy(adapted, prompt) == reference(adapted, prompt)


def test_adapters_go_on_from_a_checkpoint(make: Workshop, pretrained: Any) -> None:
    saving = {"save_strategy": "steps", "save_steps": 1, "max_steps": 3, "peft_config": lora(init_lora_weights=True)}
    models = [copy.deepcopy(pretrained) for _ in range(2)]
    whole, again = (make(model=model, **saving) for model in models)
    whole.train()
    checkpoint = last_checkpoint(make.folder)
    assert checkpoint is not None
    again.train(resume_from_checkpoint=str(checkpoint.with_name("checkpoint-2")))
    assert again.batches == 1
    assert moved(weights(whole), weights(again)) == []


def test_what_cannot_be_merged_is_refused(make: Workshop, pretrained: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="PromptTuningConfig has no weights that an engine could merge"):
        make(peft_config=peft.PromptTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM"))
    tied = copy.deepcopy(pretrained)
    tied.config.tie_word_embeddings = True
    tied.tie_weights()
    with pytest.warns(UserWarning, match="tie_word_embeddings"):
        adapted = peft.get_peft_model(tied, lora(target_modules=["embed_tokens", "q_proj"]))
    with pytest.raises(InvalidArgumentError, match="tied and an adapter changes one of them"):
        dict(plain_parameters(adapted))


def test_the_policy_is_saved_as_a_plain_model(make: Workshop, tmp_path: Path) -> None:
    trainer = make(peft_config=lora(), max_steps=1)
    trainer.train()
    trainer.save_policy(str(tmp_path))
    assert not list(tmp_path.glob("adapter*"))
    saved = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    trainer.model.eval()
    ids = torch.arange(1, 9)[None]
    with torch.no_grad():
        torch.testing.assert_close(saved(ids).logits, trainer.model(ids).logits, atol=1e-4, rtol=1e-4)
    AutoTokenizer.from_pretrained(tmp_path)
