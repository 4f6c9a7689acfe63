"""Local model directories: where the shipped ones are, and what of them is needed besides the weights."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from obsspec_gym.agents.tokens import Tokenizer
from obsspec_gym.errors import InvalidArgumentError, MissingExtraError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from obsspec_gym.agents.engine.base import Engine
    from obsspec_gym.agents.engine.transformers import DriverName, DtypeName

SHIPPED = Path(__file__).parent / "shipped"
"""Where the models that come with this package lie."""

EngineName = Literal["transformers", "vllm"]
"""Engines that are made from a model directory: the embedded one, and vLLM in this program."""


def model_directory(source: str | Path, role: Literal["policy", "world_model"]) -> Path:
    """The directory of a model.

    Args:
        source: ``"shipped"``, or a directory in the Hugging Face layout.
        role: Which of the shipped models is meant.

    Raises:
        InvalidArgumentError: If there is no model there.
    """
    directory = SHIPPED / role if source == "shipped" else Path(source)
    if not (directory / "config.json").is_file():
        expected = f"expected 'shipped' or a directory with a config.json, got {str(source)!r}"
        if source == "shipped":
            expected = f"this installation comes without its {role.replace('_', ' ')}: {directory} holds no model"
        raise InvalidArgumentError(expected)
    return directory


_LOADING = threading.Lock()
"""Transformers exchanges functions of torch and of its own for the whole process while it loads a model: two that load
at once leave them exchanged for good, and models without their tied weights."""


def load_model(directory: str | Path, dtype: str = "auto") -> PreTrainedModel:
    """The model of a directory, from its local files; callable from several threads at once.

    Args:
        directory: In the Hugging Face layout.
        dtype: What its parameters are to be; ``"auto"`` is what the files hold.

    Raises:
        MissingExtraError: If transformers is not installed.
        InvalidArgumentError: If there is no model, or weights of it are missing.
    """
    try:
        from transformers import AutoModelForCausalLM
    except ImportError as error:
        raise MissingExtraError("transformers", "lm") from error
    if not (Path(directory) / "config.json").is_file():
        raise InvalidArgumentError(f"expected a directory with a model (config.json), got {str(directory)!r}")
    with _LOADING:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            directory, local_files_only=True, dtype=dtype, output_loading_info=True
        )
    model: PreTrainedModel = loaded[0]
    missing = sorted(loaded[1]["missing_keys"])
    if missing:
        raise InvalidArgumentError(
            f"{directory} lacks {len(missing)} weights of its model, the first is {missing[0]!r}"
        )
    return model


def load_tokenizer(directory: Path) -> Tokenizer:
    """The tokenizer of a model directory; nothing is looked for elsewhere.

    Raises:
        MissingExtraError: If transformers is not installed.
        InvalidArgumentError: If the directory holds no tokenizer.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise MissingExtraError("transformers", "lm") from error
    try:
        return cast(Tokenizer, AutoTokenizer.from_pretrained(str(directory), local_files_only=True))
    except (OSError, ValueError) as error:
        raise InvalidArgumentError(f"no tokenizer can be loaded from {directory}: {error}") from error


def context_length(directory: Path) -> int:
    """How many tokens the model can attend to, from its ``config.json``.

    Raises:
        InvalidArgumentError: If it does not say.
    """
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    length = config.get("max_position_embeddings")
    if not isinstance(length, int):
        raise InvalidArgumentError(f"{directory / 'config.json'} says no max_position_embeddings")
    return length


def server_urls(engine: str) -> tuple[str, ...]:
    """The URLs in an engine's name; none if it is no name of servers."""
    return tuple(engine.split(",")) if engine.startswith(("http://", "https://")) else ()


def check_engine(engine: str) -> None:
    """Tells before anything is loaded if there is no such engine.

    Raises:
        InvalidArgumentError: If there is none.
    """
    if engine not in get_args(EngineName) and not server_urls(engine):
        names = ", ".join(get_args(EngineName))
        raise InvalidArgumentError(f"engine must be one of {names}, or the URLs of servers, got {engine!r}")


def load_engine(
    directory: Path,
    *,
    engine: str = "transformers",
    driver: DriverName = "thread",
    dtype: DtypeName = "float32",
    **options: Any,
) -> Engine:
    """An engine on a model directory.

    Args:
        directory: The model's. Servers are asked, and have weights of their own.
        engine: An :data:`EngineName`, or the URLs of servers, separated by commas.
        driver: Who runs the embedded engine's steps; the others have processes of their own.
        dtype: What it computes in. Servers compute in what they were started with.
        **options: Further arguments of that engine.

    Raises:
        InvalidArgumentError: If there is no such engine, or it does not compute in ``dtype``.
        MissingExtraError: If what it needs is not installed.
    """
    if engine == "transformers":
        from obsspec_gym.agents.engine.transformers import TransformersEngine

        return TransformersEngine(directory, driver=driver, dtype=dtype, **options)
    check_engine(engine)
    if dtype != "float32":
        raise InvalidArgumentError(f"only the embedded engine computes in another dtype than float32, got {dtype!r}")
    if engine != "vllm":
        from obsspec_gym.agents.engine.server import ServerEngine

        return ServerEngine(server_urls(engine), **options)
    from obsspec_gym.agents.engine.vllm import VLLMEngine

    return VLLMEngine(directory, **options)
