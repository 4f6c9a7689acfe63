"""A training as it is written down: GRPO's options and ours, checked before anything is loaded.

::

    suite: basics
    tasks: {first: 10000, count: 512}
    world_model: {source: cascade}
    speculation: {depth: 1}
    grpo: {output_dir: runs/mine, learning_rate: 1e-4, max_steps: 100}

A key that does not exist is refused by name, with the one that was probably meant.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from obsspec_gym.errors import InvalidArgumentError, MissingExtraError

try:
    import yaml
    from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
except ImportError as error:
    raise MissingExtraError(error.name or "pydantic", "train") from error

Positive = Annotated[int, Field(ge=1)]
NotNegative = Annotated[int, Field(ge=0)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Tasks(_Section):
    """Consecutive tasks of the suite.

    Attributes:
        first: Index of the first one. Of generated suites those below 10,000 are for evaluation.
        count: How many.
    """

    first: NotNegative = 10_000
    count: Positive = 512

    @property
    def indices(self) -> range:
        """Which."""
        return range(self.first, self.first + self.count)


class EvaluationTasks(Tasks):
    """Tasks that are only measured on; how often says ``grpo.eval_strategy``."""

    first: NotNegative = 0
    count: Positive = 32


class Terminals(_Section):
    """The environments.

    Attributes:
        num_envs: How many run at once (on every process).
        sandbox: Kind of sandbox: ``bubblewrap``, ``docker`` or ``local`` (no isolation).
        sandbox_options: Options of that kind, as :class:`~obsspec_gym.envs.machine.Machines` takes them.
        latency: Delay added to commands: ``none``, ``remote`` or ``lognormal:MEDIAN,SIGMA``.
        max_turns: Actions after which an episode is truncated; by default the task's own.
        timeout: Seconds a command may run; by default the task's own.
    """

    num_envs: Positive = 8
    sandbox: str = "bubblewrap"
    sandbox_options: dict[str, Any] = {}
    latency: str = "none"
    max_turns: Positive | None = None
    timeout: Annotated[float, Field(gt=0)] | None = None


class Speculation(_Section):
    """How far ahead the policy thinks.

    Attributes:
        depth: Observations ahead; 0 for none.
        breadth: Alternative observations at each level.
        adaptive: Decide turn by turn, up to that depth and breadth.
    """

    depth: NotNegative = 1
    breadth: Positive = 1
    adaptive: bool = True


class EngineOptions(_Section):
    """What generates.

    Attributes:
        kind: ``transformers``, the embedded engine, or ``vllm``.
        options: Its arguments, such as ``driver``, ``device`` or ``capacity_tokens``.
    """

    kind: str = "transformers"
    options: dict[str, Any] = {}


class WorldModelOptions(_Section):
    """Who predicts observations.

    Attributes:
        source: ``cascade`` (memory, then the shipped model where it has nothing), ``memory``, ``shipped``, a model
            directory, ``memory+DIRECTORY``, or ``none``.
        options: Further arguments of :func:`~obsspec_gym.agents.world_model.loading.load_world_model`.
        engine: What its language model generates on: by default a process that stands back for the CPU, or the
            training's accelerator.
        strict: Whether a model that cannot be loaded ends the run; otherwise it goes on without, and says so.
    """

    source: str = "cascade"
    options: dict[str, Any] = {}
    engine: EngineOptions = EngineOptions()
    strict: bool = False


class TrainConfig(_Section):
    """One training.

    Attributes:
        policy: What training starts from: ``shipped``, or a model directory.
        dtype: What the policy is trained in; ``auto`` is as it was saved.
        lora: Arguments of ``peft.LoraConfig``; ``None`` trains all weights.
        system_prompt: As in :class:`~obsspec_gym.agents.lm_policy.LMPolicy`.
        max_turn_tokens: Bound on one completion, in tokens.
        suite: Where tasks come from, by name.
        work: Scales how long the slow commands of generated tasks take; observations stay the same.
        tasks: Which tasks are trained on.
        evaluation: Which ones are measured on; ``None`` for no evaluation.
        terminals: The environments.
        world_model: Who predicts observations.
        speculation: How far ahead.
        engine: What the policy generates on.
        cotraining: Fields of :class:`~obsspec_gym.training.cotraining_settings.CoTraining`, with which the world model
            is trained beside the policy; ``None`` leaves it as it is.
        grpo: Fields of TRL's ``GRPOConfig``.
    """

    policy: str = "shipped"
    dtype: Literal["auto", "float32", "float64", "bfloat16"] = "float32"
    lora: dict[str, Any] | None = None
    system_prompt: str | None = None
    max_turn_tokens: Positive = 128
    suite: str = "basics"
    work: Annotated[float, Field(gt=0, le=10)] = 1.0
    tasks: Tasks = Tasks()
    evaluation: EvaluationTasks | None = None
    terminals: Terminals = Terminals()
    world_model: WorldModelOptions = WorldModelOptions()
    speculation: Speculation = Speculation()
    engine: EngineOptions = EngineOptions()
    cotraining: dict[str, Any] | None = None
    grpo: dict[str, Any] = {}


def read_config(path: Path, settings: Sequence[str] = ()) -> TrainConfig:
    """Reads a configuration.

    Args:
        path: A YAML file.
        settings: ``key=value`` words that replace what it says, such as ``grpo.learning_rate=1e-4``; values are YAML.

    Raises:
        InvalidArgumentError: If it cannot be read, or a key or a value is not what is expected.
    """
    try:
        written = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgumentError(f"{path} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if written is None:
        written = {}
    if not isinstance(written, dict):
        raise InvalidArgumentError(f"{path} must hold options by name, got {type(written).__name__}")
    for setting in settings:
        written = _with(written, setting)
    return parse_config(written)


def parse_config(options: Mapping[str, Any]) -> TrainConfig:
    """A configuration from plain values.

    Raises:
        InvalidArgumentError: If a key or a value is not what is expected.

    Example:
        >>> parse_config({"tasks": {"count": 4}}).tasks.indices
        range(10000, 10004)
    """
    try:
        return TrainConfig.model_validate(dict(options))
    except ValidationError as error:
        raise InvalidArgumentError(_sentence(error)) from None


def refuse_unknown(names: Iterable[Any], known: Iterable[str], where: str) -> None:
    """Refuses what is not known.

    Args:
        names: What was written.
        known: What there is.
        where: The section, with its dot: ``grpo.``, or nothing.

    Raises:
        InvalidArgumentError: For the first name that is not known, with the nearest one that is.
    """
    known = list(known)
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
            hint = f"did you mean {where}{near[0]}?" if near else f"there are {', '.join(sorted(known))}"
            raise InvalidArgumentError(f"there is no option {where}{name}; {hint}")


def as_declared(options: Mapping[str, Any], hints: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The options as the types that are declared for them (``1e-4`` is text in YAML).

    Args:
        options: What was written.
        hints: What there is, and its type.
        where: The section, with its dot.

    Raises:
        InvalidArgumentError: If there is no such option, or a value is not of its type.

    Example:
        >>> as_declared({"rate": "1e-4"}, {"rate": float}, "section.")
        {'rate': 0.0001}
    """
    refuse_unknown(options, hints, where)
    return {name: _as_declared(f"{where}{name}", hints[name], value) for name, value in options.items()}


def _as_declared(name: str, hint: Any, value: Any) -> Any:
    try:
        return TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True)).validate_python(value)
    except ValidationError as error:
        raise InvalidArgumentError(_said(name, error.errors(include_url=False)[0])) from None


def _said(name: str, mistake: Any) -> str:
    message: str = mistake["msg"]
    return f"{name}: {message[0].lower()}{message[1:]}, got {mistake['input']!r}"


def _with(options: dict[Any, Any], setting: str) -> dict[Any, Any]:
    """The options with one of them replaced."""
    key, equals, text = setting.partition("=")
    if not equals or not key:
        raise InvalidArgumentError(f"--set takes key=value, got {setting!r}")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise InvalidArgumentError(f"--set {key}: the value is not YAML, got {text!r}") from None
    return _replaced(options, key.split("."), value, setting)


def _replaced(options: dict[Any, Any], path: Sequence[str], value: Any, setting: str) -> dict[Any, Any]:
    name, *rest = path
    if not rest:
        return {**options, name: value}
    inner = options.get(name)
    if not isinstance(inner, dict | None):
        raise InvalidArgumentError(f"--set {setting}: {name} is a value and has no options of its own")
    return {**options, name: _replaced(inner or {}, rest, value, setting)}


def _sentence(error: ValidationError) -> str:
    """What the first mistake is, for people."""
    first = error.errors(include_url=False)[0]
    path = [str(part) for part in first["loc"]]
    if first["type"] == "extra_forbidden":
        section: Any = TrainConfig
        for part in path[:-1]:
            section = _section_of(section.model_fields[part].annotation)
        where = "".join(f"{part}." for part in path[:-1])
        try:
            refuse_unknown([path[-1]], section.model_fields, where)
        except InvalidArgumentError as refusal:
            return str(refusal)
    return _said(".".join(path), first)


def _section_of(annotation: Any) -> Any:
    """The section in ``Section`` or ``Section | None``."""
    parts = [annotation, *get_args(annotation)]
    return next(part for part in parts if isinstance(part, type) and issubclass(part, _Section))
