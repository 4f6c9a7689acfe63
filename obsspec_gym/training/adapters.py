"""Models with adapters, as the plain weights that they compute with."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper, ModulesToSaveWrapper
from torch import nn
from transformers import PreTrainedModel

from obsspec_gym.errors import InvalidArgumentError


def base_model(model: Any) -> Any:
    """The model itself, without what PEFT puts around it."""
    return model.get_base_model() if isinstance(model, PeftModel) else model


def plain_parameters(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """A model's parameters by Hugging Face's names, with its active adapters merged in.

    The adapters stay as they are: each adapted layer is merged in a copy, one at a time, in float32 at least, as the
    layer itself computes.

    Args:
        model: A transformers model, or a ``PeftModel`` around one.

    Raises:
        InvalidArgumentError: If an adapter changes one of two tied weights: then no plain model is the same.
    """
    if not isinstance(model, PeftModel):
        yield from model.named_parameters()
        return
    base: Any = model.get_base_model()
    if base.config.get_text_config().tie_word_embeddings:
        _refuse_untied(base)
    yield from _merged(base, "")


def merged(model: PeftModel) -> PreTrainedModel:
    """A plain model that computes what a model with adapters does; on the CPU.

    Raises:
        InvalidArgumentError: As :func:`plain_parameters`.
    """
    base: Any = model.get_base_model()
    made: Any = type(base)(copy.deepcopy(base.config))
    plain: PreTrainedModel = made.to(dtype=base.dtype)
    weights = dict(plain_parameters(model))
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            parameter.copy_(weights[name])
    plain.generation_config = copy.deepcopy(base.generation_config)
    return plain


def _merged(module: nn.Module, prefix: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(module, BaseTunerLayer):
        layer: Any = copy.deepcopy(module)
        if layer.weight.dtype.itemsize < 4:
            layer = layer.float()
        layer.merge()
        module = layer.get_base_layer()
    elif isinstance(module, ModulesToSaveWrapper):
        [name] = module.active_adapters
        module = module.modules_to_save[name]
    elif isinstance(module, AuxiliaryTrainingWrapper):
        raise InvalidArgumentError(f"{type(module).__name__} of PEFT cannot be merged for the engine")
    for name, parameter in module.named_parameters(recurse=False):
        yield f"{prefix}{name}", parameter.detach()
    for name, child in module.named_children():
        yield from _merged(child, f"{prefix}{name}.")


def _refuse_untied(base: Any) -> None:
    for side in (base.get_input_embeddings(), base.get_output_embeddings()):
        if isinstance(side, BaseTunerLayer | AuxiliaryTrainingWrapper):
            raise InvalidArgumentError(
                "the model's input and output embeddings are tied and an adapter changes one of them: leave both out "
                "of target_modules and modules_to_save"
            )
