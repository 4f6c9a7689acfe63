"""Where an engine's model comes from, and what of it vLLM is given."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM

from obsspec_gym.agents.engine.base import Weights
from obsspec_gym.agents.engine.vllm.heads import HeadPadding
from obsspec_gym.errors import InvalidArgumentError

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

State = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Source:
    """A directory, or a model in this program.

    Attributes:
        config: The model's configuration.
        path: The directory; ``None`` for a model.
        model: The model; ``None`` for a directory.
        padding: What vLLM's kernels need of its heads.
    """

    config: PretrainedConfig
    path: Path | None = None
    model: PreTrainedModel | None = None
    padding: HeadPadding | None = None

    @classmethod
    def of(cls, model_or_path: PreTrainedModel | str | Path, *, on_cpu: bool) -> Source:
        """Finds out which it is.

        Raises:
            InvalidArgumentError: If there is no model in the directory, or vLLM has no kernels for it.
        """
        if isinstance(model_or_path, str | Path):
            path, model = Path(model_or_path), None
            if not (path / "config.json").is_file():
                raise InvalidArgumentError(f"expected a directory with a model (config.json), got {str(path)!r}")
            config = AutoConfig.from_pretrained(path, local_files_only=True)
        else:
            path, model, config = None, model_or_path, model_or_path.config
        return cls(config, path, model, HeadPadding.needed(config) if on_cpu else None)

    @property
    def is_read_by_vllm(self) -> bool:
        """Whether vLLM reads the weights from the directory itself."""
        return self.model is None and self.padding is None

    @contextmanager
    def directory(self) -> Iterator[Path]:
        """A directory that describes the model to vLLM; without weights, if vLLM is not to read them itself."""
        if self.path is not None and self.is_read_by_vllm:
            yield self.path
            return
        config: Any = copy.deepcopy(self.config)
        if self.padding is not None:
            config = self.padding.config(config)
        if self.model is not None:
            config.architectures = [type(self.model).__name__]
        with tempfile.TemporaryDirectory(prefix="obsspec-vllm-") as folder:
            config.save_pretrained(folder)
            yield Path(folder)

    def state(self, weights: Weights | None = None) -> State | None:
        """The parameters that vLLM is to compute with; ``None`` for those in the directory, as they are.

        Args:
            weights: By Hugging Face's names, all of them; ``None`` for what is at the source.

        Raises:
            InvalidArgumentError: If one is missing or of another shape.
        """
        if weights is None:
            if self.is_read_by_vllm:
                return None
            weights = dict(self.model.named_parameters()) if self.model is not None else self._read()
        state = self._select(weights if isinstance(weights, Mapping) else dict(weights))
        return state if self.padding is None else self.padding.weights(state)

    def _read(self) -> dict[str, torch.Tensor]:
        assert self.path is not None
        state: dict[str, torch.Tensor] = {}
        for path in sorted(self.path.glob("*.safetensors")):
            with safe_open(path, framework="pt") as file:
                state |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        return state

    def _select(self, state: State) -> dict[str, torch.Tensor]:
        """The model's parameters out of a state that may hold more; tied ones once."""
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(self.config)  # type: ignore[no-untyped-call]  # transformers' has no types
        selected = {}
        for name, parameter in model.named_parameters():
            tensor = state.get(name)
            if tensor is None:
                raise InvalidArgumentError(f"expected a parameter named {name!r}, and there is none")
            if tensor.shape != parameter.shape:
                raise InvalidArgumentError(
                    f"expected {name!r} of shape {tuple(parameter.shape)}, got {tuple(tensor.shape)}"
                )
            selected[name] = tensor.detach()
        return selected
