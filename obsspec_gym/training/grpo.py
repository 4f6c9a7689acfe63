"""GRPO with TRL on speculative rollouts."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from transformers import TrainerCallback

from obsspec_gym.agents.engine.base import Engine, Weights
from obsspec_gym.agents.engine.transformers import TransformersEngine
from obsspec_gym.agents.lm_policy import LMPolicy
from obsspec_gym.agents.tokens import Tokenizer
from obsspec_gym.agents.world_model.base import WorldModel
from obsspec_gym.agents.world_model.cascade import Checkpointable
from obsspec_gym.envs.arguments import read_suite
from obsspec_gym.envs.tasks.task import Suite
from obsspec_gym.envs.vector import TerminalVectorEnv
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.seeding import derive_seed
from obsspec_gym.speculation.selector import Selector
from obsspec_gym.training import checkpoints
from obsspec_gym.training.adapters import base_model, merged, plain_parameters
from obsspec_gym.training.arguments import (
    budget_of,
    check_columns,
    check_config,
    check_engine,
    check_whole_weights,
    sampling_of,
)
from obsspec_gym.training.budget import BudgetedPolicy
from obsspec_gym.training.cotraining import WorldModelCoTrainingCallback
from obsspec_gym.training.rollout import RolloutBatch, Rollouts, name_episodes, task_name
from obsspec_gym.training.trl_hooks import RolloutTrainer, environment_reward
from obsspec_gym.training.world_models import load_or_do_without

DEFAULT_ENVIRONMENTS = 8
"""Sandboxes that run at once, where nothing else is asked for."""


class ObsSpecGRPOTrainer(RolloutTrainer):
    """TRL's ``GRPOTrainer`` with episodes in environments, played with observation speculation.

    Each generation step plays one episode a row, free-running: an environment takes its next episode as soon as it is
    free. The policy generates on an engine that is given the trainer's weights when training begins and after every
    optimiser step, with adapters merged in. Tokens go in and come out as they were sampled; the loss is on the
    policy's tokens only. What becomes of episodes that break or run out of turns or tokens: see
    :mod:`obsspec_gym.training.rollout`. Speculation changes how long a batch takes, never what is in it.

    Every process of a distributed run has environments and an engine of its own; what is sampled does not depend on
    how many there are. Checkpoints are whole or not there, and hold what a continued run needs to end with the weights
    of the unbroken one; what the world model has learnt is in them too.

    The dataset has a column ``task`` (an index of the suite) beside ``prompt``, which is only shown in logs:
    :func:`~obsspec_gym.training.dataset.task_dataset` makes one. ``max_completion_length`` bounds all tokens of an
    episode after its prompt, observations included. Every reward function is called with TRL's arguments and with
    ``trajectory``, the finished episodes.

    Args:
        model: As in ``GRPOTrainer``: a model, or where to load one from.
        reward_funcs: Reward functions besides the environment's own, which comes first (``reward_weights`` too).
        args: A ``GRPOConfig``.
        train_dataset: Rows with ``prompt`` and ``task``.
        eval_dataset: The same.
        processing_class: The tokenizer.
        suite: Where tasks come from: a name or a suite. ``None`` with ``environments`` whose ``reset`` understands
            the column ``task`` as it is.
        environments: What :func:`~obsspec_gym.speculation.collector.collect` takes; they stay the caller's. By
            default terminals on the suite, made when they are first needed.
        num_envs: How many terminals to make.
        terminal_options: Arguments of those terminals: ``sandbox``, ``max_turns``, ``latency``, ...
        world_model: Predicts observations, and stays the caller's; ``None`` for no speculation. Or what
            :func:`~obsspec_gym.agents.world_model.loading.load_world_model` loads: a name or a directory.
        world_model_options: Further arguments of that function.
        strict: Whether a world model that cannot be loaded ends the training; otherwise it goes on without.
        speculation: How far ahead to speculate; an ``AdaptiveSelector`` by default.
        max_turn_tokens: Bound on one completion, in tokens.
        system_prompt: As in :class:`~obsspec_gym.agents.lm_policy.LMPolicy`.
        engine: What generates: ``"transformers"`` for a ``TransformersEngine`` on the trainer's model, ``"vllm"`` for
            a ``VLLMEngine`` on it. Or an engine, which stays the caller's; its ``update_weights`` is given the
            model's named tensors.
        engine_options: Arguments of that engine. By default it computes on the trainer's device: a
            ``TransformersEngine`` in float64 for a float64 model and in float32 for every other, vLLM in the model's
            own type where that is one of half precision, else in float32.
        **trl_options: Further arguments of ``GRPOTrainer``: ``callbacks``, ``optimizers``, ``peft_config``, ...

    Raises:
        InvalidArgumentError: If an option cannot be honoured, before a model is loaded.

    Example:
        >>> trainer = ObsSpecGRPOTrainer(  # doctest: +SKIP
        ...     "path/to/model", args=config, train_dataset=task_dataset("basics", range(10_000, 10_256)),
        ...     suite="basics", world_model=MemoryWorldModel(),
        ... )
        >>> trainer.train()  # doctest: +SKIP
    """

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: Any = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        *,
        suite: str | Suite | None = None,
        environments: Any = None,
        num_envs: int = DEFAULT_ENVIRONMENTS,
        terminal_options: Mapping[str, Any] | None = None,
        world_model: WorldModel | str | Path | None = None,
        world_model_options: Mapping[str, Any] | None = None,
        strict: bool = False,
        speculation: Selector | None = None,
        max_turn_tokens: int = 256,
        system_prompt: str | None = None,
        engine: Engine | str = "transformers",
        engine_options: Mapping[str, Any] | None = None,
        **trl_options: Any,
    ) -> None:
        if suite is None and environments is None:
            raise InvalidArgumentError("a trainer needs a suite or environments, got neither")
        self.suite = None if suite is None else read_suite(suite)
        if environments is None:
            options = {"suite": self.suite, **(terminal_options or {})}
            environments = functools.partial(TerminalVectorEnv, num_envs, **options)
        check_engine(engine)
        check_config(args, trl_options)
        for dataset in (train_dataset, eval_dataset):
            check_columns(dataset)
        more = [] if reward_funcs is None else reward_funcs if isinstance(reward_funcs, list) else [reward_funcs]
        super().__init__(
            model,
            [environment_reward, *more],
            args,
            train_dataset,
            eval_dataset,
            processing_class,
            **trl_options,
        )
        check_whole_weights(self.accelerator.distributed_type)
        self._owns_engine = isinstance(engine, str)
        self.engine: Engine = self._make_engine(engine, engine_options or {}) if isinstance(engine, str) else engine
        self._owns_world_model = isinstance(world_model, str | Path)
        if isinstance(world_model, str | Path):
            world_model = load_or_do_without(world_model, world_model_options or {}, strict=strict)
        self.world_model: WorldModel | None = world_model
        sampling = sampling_of(self.args, max_turn_tokens)
        tokenizer = cast(Tokenizer, self.processing_class)
        self.policy = LMPolicy(self.engine, tokenizer, sampling=sampling, system_prompt=system_prompt)
        self.rollouts = Rollouts(
            BudgetedPolicy(self.policy, budget_of(self.args)),
            environments,
            world_model,
            speculation,
            pad_token_id=self.processing_class.pad_token_id,
            mask_truncated=self.args.mask_truncated_completions,
        )
        self.stop_at(self.policy.sampling.stop_token_ids)
        self.add_callback(WeightUpdate(self))

    def roll_out(self, rows: Sequence[dict[str, Any]]) -> RolloutBatch:
        """Plays one episode for each row."""
        tasks = [row["task"] for row in rows]
        before, _ = self.gather_names([task_name(task, self.suite) for task in tasks])
        mode = "train" if self.model.training else "eval"
        batch = self.rollouts.play(
            name_episodes(tasks, self.suite, before),
            run_seed=derive_seed(mode, self.args.seed, self.accumulated if self.model.training else 0),
            policy_step=self.state.global_step,
        )
        if self.model.training:
            self._report(batch)
        return batch

    def _report(self, batch: RolloutBatch) -> None:
        """Tells the callbacks that learn from rollouts of those that the policy learns from."""
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, WorldModelCoTrainingCallback):
                callback.bind(self)
                callback.report_collection(batch.collection)

    def learners(self) -> dict[str, Checkpointable]:
        """What learns beside the policy: the world model and callbacks, where they have a state."""
        return checkpoints.named([self.world_model, *self.callback_handler.callbacks])

    def policy_weights(self) -> Weights:
        """What the engine is to compute with: parameters by Hugging Face's names, with adapters merged in."""
        return plain_parameters(self.accelerator.unwrap_model(self.model))

    def save_policy(self, folder: str) -> None:
        """Writes the policy as it is now as a directory that any engine loads: a plain model, adapters merged in.

        To be called on every process, as ``save_model``, which writes adapters alone.

        Args:
            folder: Where to; it is made.
        """
        model = self.accelerator.unwrap_model(self.model)
        if base_model(model) is model:
            self.save_model(folder)
        elif self.is_world_process_zero():
            merged(model).save_pretrained(folder)
            self.processing_class.save_pretrained(folder)

    def _make_engine(self, kind: str, options: Mapping[str, Any]) -> Engine:
        """An engine of its own; :func:`~obsspec_gym.training.arguments.check_engine` knows the kinds."""
        base = base_model(self.model)
        options = {"device": str(self.accelerator.device), "weights": self.policy_weights(), **options}
        if kind == "vllm":
            from obsspec_gym.agents.engine.vllm import VLLMEngine

            half = {torch.bfloat16: "bfloat16", torch.float16: "float16"}
            return VLLMEngine(base, **{"dtype": half.get(base.dtype, "float32"), **options})
        dtype = "float64" if base.dtype is torch.float64 else "float32"
        return TransformersEngine(base, **{"dtype": dtype, **options})

    def close(self) -> None:
        """Closes the engine, the environments and the world model that are its own. Idempotent."""
        self.rollouts.close()
        if self._owns_engine:
            self.engine.close()
        if self._owns_world_model and self.world_model is not None:
            self.world_model.close()

    def __enter__(self) -> ObsSpecGRPOTrainer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class WeightUpdate(TrainerCallback):
    """Gives the engine the weights: of a checkpoint at the start, after every step, and of the best at the end."""

    def __init__(self, trainer: ObsSpecGRPOTrainer) -> None:
        self._trainer = trainer

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """A checkpoint may just have been loaded."""
        self._update()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """The optimiser has stepped."""
        self._update()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """The best model may just have been loaded."""
        self._update()

    def _update(self) -> None:
        self._trainer.engine.update_weights(self._trainer.policy_weights())
