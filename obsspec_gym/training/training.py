"""A configuration made into a trainer: checked as a whole first, loaded afterwards."""

from __future__ import annotations

import inspect
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, get_type_hints

import torch
from transformers import AutoTokenizer, TrainerCallback
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from obsspec_gym.agents.engine.transformers import TransformersEngine
from obsspec_gym.agents.loading import load_model, model_directory
from obsspec_gym.agents.world_model.base import WorldModel
from obsspec_gym.agents.world_model.confidence import Confidence
from obsspec_gym.agents.world_model.loading import load_world_model, world_model_parts
from obsspec_gym.envs.latency import LatencyProfile
from obsspec_gym.envs.machine import Machines
from obsspec_gym.envs.tasks import EVALUATION, Suite, get_suite
from obsspec_gym.envs.tasks.generated import GeneratedSuite
from obsspec_gym.errors import InvalidArgumentError, MissingExtraError
from obsspec_gym.speculation.adaptive import AdaptiveSelector
from obsspec_gym.speculation.selector import FixedSelector, Selector
from obsspec_gym.training import checkpoints
from obsspec_gym.training.arguments import check_engine
from obsspec_gym.training.config import EngineOptions, Tasks, TrainConfig, as_declared, refuse_unknown
from obsspec_gym.training.cotraining import WorldModelCoTrainingCallback
from obsspec_gym.training.cotraining_settings import CoTraining
from obsspec_gym.training.dataset import task_dataset
from obsspec_gym.training.grpo import ObsSpecGRPOTrainer
from obsspec_gym.training.grpo_options import make_grpo_config
from obsspec_gym.training.log import LOG, LogFile
from obsspec_gym.training.world_models import load_or_do_without

logger = logging.getLogger(__name__)

NONE = "none"
"""No world model."""


class Training:
    """One training, by its configuration.

    The constructor checks everything that can be checked without loading a model or starting a sandbox.

    Args:
        config: What is trained on what.

    Attributes:
        suite: Where tasks come from.
        policy: The directory that training starts from.
        terminal_options: Arguments of the environments.
        grpo: TRL's configuration, as for a CPU where this machine has not the devices that it asks for.
        not_here: Why it cannot run on this machine, if it cannot.

    Raises:
        InvalidArgumentError: If something of it cannot be had.
        MissingExtraError: If it needs something that is not installed.

    Example:
        >>> training = Training(parse_config({"grpo": {"use_cpu": True, "bf16": False}}))  # doctest: +SKIP
        >>> with training.trainer() as trainer:  # doctest: +SKIP
        ...     trainer.train()
    """

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.suite = _suite(config)
        self.policy = model_directory(config.policy, "policy")
        self._world_model = _world_model_directory(config.world_model.source)
        _check_engine_options(config.engine, "engine.options.")
        _check_engine_options(config.world_model.engine, "world_model.engine.options.")
        _check_names(config.world_model.options, load_world_model, "world_model.options.")
        self.terminal_options = _terminal_options(config)
        self.grpo, self.not_here = make_grpo_config(config.grpo)
        self._cotraining = self._read_cotraining(config.cotraining)

    @property
    def out(self) -> Path:
        """Where checkpoints, the log and the trained models go."""
        return Path(str(self.grpo.output_dir))

    @property
    def log(self) -> Path:
        """The file that every entry of the log history is written to."""
        return self.out / LOG

    @cached_property
    def last_checkpoint(self) -> Path | None:
        """What an earlier run of the same training left, if it got so far."""
        return checkpoints.last_checkpoint(self.out)

    @contextmanager
    def trainer(self, callbacks: Sequence[TrainerCallback] = ()) -> Iterator[ObsSpecGRPOTrainer]:
        """The trainer, with everything loaded; all of it is closed at the end.

        Args:
            callbacks: Further ones.

        Raises:
            InvalidArgumentError: If this machine cannot do what the configuration asks for.
        """
        if self.not_here is not None:
            raise InvalidArgumentError(self.not_here)
        config = self.config
        with ExitStack() as stack:
            world_model = self._load_world_model()
            if world_model is not None:
                stack.callback(world_model.close)
            trainer = stack.enter_context(
                ObsSpecGRPOTrainer(
                    load_model(self.policy, config.dtype),
                    args=self.grpo,
                    train_dataset=task_dataset(self.suite, config.tasks.indices),
                    eval_dataset=config.evaluation and task_dataset(self.suite, config.evaluation.indices),
                    processing_class=AutoTokenizer.from_pretrained(str(self.policy), local_files_only=True),
                    suite=self.suite,
                    num_envs=config.terminals.num_envs,
                    terminal_options=self.terminal_options,
                    world_model=world_model,
                    speculation=self._selector(),
                    max_turn_tokens=config.max_turn_tokens,
                    system_prompt=config.system_prompt,
                    engine=config.engine.kind,
                    engine_options=config.engine.options,
                    peft_config=_lora(config.lora),
                    callbacks=[*self._cotrain(world_model), LogFile(self.log), *callbacks],
                )
            )
            for others in (PrinterCallback, ProgressCallback):
                trainer.remove_callback(others)
            yield trainer

    def save_world_model(self, trainer: ObsSpecGRPOTrainer) -> Path | None:
        """Writes the world model that has learnt along as a directory that ``world_model.source`` takes.

        To be called on one process. A fitted confidence goes with it; what calibrates it is learnt on line.

        Args:
            trainer: What :meth:`trainer` gave.

        Returns:
            The directory, whole; ``None`` where there is none: nothing has learnt, or it could not be written, which
            is told. A world model never takes a training's result with it.
        """
        callbacks = trainer.callback_handler.callbacks
        learning = next((each for each in callbacks if isinstance(each, WorldModelCoTrainingCallback)), None)
        if learning is None or learning.failed or self._world_model is None:
            return None
        folder, new = self.out / "world_model", self.out / "world_model.new"
        try:
            shutil.rmtree(new, ignore_errors=True)
            learning.save_model(new)
            AutoTokenizer.from_pretrained(str(self._world_model), local_files_only=True).save_pretrained(new)
            confidence = Confidence.load(self._world_model)
            if confidence is not None:
                confidence.save(new)
            shutil.rmtree(folder, ignore_errors=True)
            new.rename(folder)
        except Exception as error:  # noqa: BLE001 - boundary: the policy has been trained, whatever becomes of this
            logger.warning("the world model could not be written to %s: %s: %s", folder, type(error).__name__, error)
            return None
        return folder

    def _load_world_model(self) -> WorldModel | None:
        """What predicts, or nothing: a training can do without."""
        section = self.config.world_model
        if section.source == NONE:
            return None
        engine: dict[str, Any] = dict(section.engine.options)
        if section.engine.kind == "transformers":
            engine = _beside_others(self.grpo.device) | engine
        named: dict[str, Any] = {name: engine.pop(name) for name in ("driver", "dtype") if name in engine}
        options: dict[str, Any] = {"engine": section.engine.kind, "engine_options": engine, **named}
        return load_or_do_without(section.source, options | section.options, strict=section.strict)

    def _cotrain(self, world_model: WorldModel | None) -> list[TrainerCallback]:
        """What trains the world model, where that is asked for and there is one."""
        if world_model is None or self._world_model is None or self._cotraining is None:
            return []
        return [WorldModelCoTrainingCallback(world_model, self._world_model, self._cotraining)]

    def _read_cotraining(self, options: Mapping[str, Any] | None) -> CoTraining | None:
        if options is None:
            return None
        if self._world_model is None:
            raise InvalidArgumentError(
                f"cotraining needs a world_model with a language model, got {self.config.world_model.source!r}"
            )
        given = as_declared(options, get_type_hints(CoTraining), "cotraining.")
        return CoTraining(**{"device": str(self.grpo.device), **given})

    def _selector(self) -> Selector:
        speculation = self.config.speculation
        kind = AdaptiveSelector if speculation.adaptive and speculation.depth else FixedSelector
        return kind(speculation.depth, speculation.breadth)


def _suite(config: TrainConfig) -> Suite:
    suite = get_suite(config.suite, work=config.work)
    if isinstance(suite, GeneratedSuite) and config.tasks.first < len(EVALUATION):
        raise InvalidArgumentError(
            f"tasks.first must be >= {len(EVALUATION)}: tasks below are for evaluation, got {config.tasks.first}"
        )
    sections: dict[str, Tasks | None] = {"tasks": config.tasks, "evaluation": config.evaluation}
    for name, tasks in sections.items():
        if tasks is not None and tasks.indices.stop > len(suite):
            last = tasks.indices.stop - 1
            raise InvalidArgumentError(f"{name} end at index {last}, but suite {config.suite!r} has {len(suite)} tasks")
    return suite


def _terminal_options(config: TrainConfig) -> dict[str, Any]:
    terminals = config.terminals
    options: dict[str, Any] = {
        "sandbox": Machines(terminals.sandbox, **terminals.sandbox_options),
        "latency": LatencyProfile.parse(terminals.latency),
    }
    if terminals.max_turns is not None:
        options["max_turns"] = terminals.max_turns
    if terminals.timeout is not None:
        options["timeout"] = terminals.timeout
    return options


def _world_model_directory(source: str) -> Path | None:
    """Where the language model is that predicts, if there is one."""
    return None if source == NONE else world_model_parts(source)[1]


def _beside_others(device: torch.device) -> dict[str, Any]:
    """How the world model's engine runs: a late prediction costs one chance, a late policy costs everybody."""
    if device.type == "cpu":
        return {"driver": "process", "niceness": 10}
    return {"driver": "thread", "device": str(device)}


def _check_engine_options(engine: EngineOptions, where: str) -> None:
    check_engine(engine.kind)
    if engine.kind == "vllm":
        from obsspec_gym.agents.engine.vllm import VLLMEngine

        _check_names(engine.options, VLLMEngine, where)
    else:
        _check_names(engine.options, TransformersEngine, where)


def _check_names(options: Mapping[str, Any], function: Callable[..., Any], where: str) -> None:
    """Refuses options that a function does not take by name."""
    parameters = inspect.signature(function).parameters.values()
    refuse_unknown(options, [each.name for each in parameters if each.kind is each.KEYWORD_ONLY], where)


def _lora(options: Mapping[str, Any] | None) -> Any:
    if options is None:
        return None
    try:
        from peft import LoraConfig
    except ImportError as error:
        raise MissingExtraError("peft", "train") from error
    return LoraConfig(task_type="CAUSAL_LM", **options)
