"""Co-training: the world model learns from every rollout, so that it keeps up with the policy."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelerate.utils import broadcast_object_list, gather_object
from transformers import PreTrainedModel, TrainerCallback

from obsspec_gym.agents.loading import load_model, model_directory
from obsspec_gym.agents.world_model.base import WorldModel
from obsspec_gym.agents.world_model.cascade import CascadeWorldModel
from obsspec_gym.agents.world_model.lm import LMWorldModel
from obsspec_gym.errors import InvalidArgumentError, ObsSpecError
from obsspec_gym.speculation.collector import Collection
from obsspec_gym.training.cotraining_settings import CoTraining
from obsspec_gym.training.learner import Learner
from obsspec_gym.training.passages import Passage, passages_of, transitions_of
from obsspec_gym.training.scoring import Score, answers_of, foreseen
from obsspec_gym.types import Transition

if TYPE_CHECKING:
    from trl.trainer.grpo_trainer import GRPOTrainer

logger = logging.getLogger(__name__)


class WorldModelCoTrainingCallback(TrainerCallback):
    """Trains the language model that predicts observations, after every step of the policy.

    At each step it takes the transitions of the rollouts since the last one, from all processes and in the order of
    task, sample and turn; tells how many of them the world model, and its frozen twin, would have foreseen *before*
    training on them; trains on draws from a replay of recent transitions; and hands the weights to the engine that
    predicts. Every process trains on the same transitions with the same seeds and so has the same world model, with no
    collective whose use depends on the data; where the kernels of an accelerator differ in the last bits, all take the
    weights of the first process.

    It logs, through the trainer and once a step, ``world_model/loss``, ``/transitions``, ``/seconds`` (its own), and
    :class:`~obsspec_gym.training.scoring.Score`'s measures of the live model (``world_model/match_rate``, ...) and of
    the twin (``world_model/frozen_match_rate``, ...).

    A failure (weights that are missing or of another shape, no memory left, a loss that is not finite) is told once,
    and the run goes on without co-training, with the weights handed over last; unless ``settings.strict``.

    ``ObsSpecGRPOTrainer`` reports its rollouts to it and saves its state in checkpoints. With another trainer, call
    :meth:`bind` once and :meth:`report` in the rollout function.

    Args:
        world_model: What predicts in rollouts: an ``LMWorldModel``, or a cascade with one. It stays the caller's.
        model: What is trained, the same model as in its engine: a model, or where to load one from.
        settings: How.

    Raises:
        InvalidArgumentError: If there is no language model in ``world_model``.
        ObsSpecError: With ``settings.strict``, if the model cannot be loaded.
    """

    def __init__(
        self,
        world_model: WorldModel,
        model: PreTrainedModel | str | Path = "shipped",
        settings: CoTraining | None = None,
    ) -> None:
        self.settings = CoTraining() if settings is None else settings
        self._world_model = _language_model(world_model)
        self._log: Callable[[str, float], None] | None = None
        self._reported: list[Passage] = []
        self._learner: Learner | None = None
        self._failure: Exception | None = None
        self._stopped = False
        with self._boundary():
            self._learner = Learner(_load(model), self.settings)
        if self.settings.strict:
            self._stop_at([_reason(self._failure)])

    def bind(self, trainer: GRPOTrainer) -> None:
        """Logs through this trainer from now on."""
        from obsspec_gym.training.trl_hooks import log_metric  # importing TRL takes seconds: only where its trainer is

        self._log = partial(log_metric, trainer)

    def report(self, transitions: Iterable[Transition], next_generations: Iterable[float] | None = None) -> None:
        """Takes what happened in rollouts, in any order; it is learnt from at the end of the policy's step.

        Args:
            transitions: One a turn. Histories need no tokens: the world model writes them its own way.
            next_generations: For each, the seconds in which the policy generated the action after it; by default it is
                taken to have needed at least as long as the tool.

        Raises:
            InvalidArgumentError: If there are not as many durations as transitions.
        """
        if not self._stopped:
            cost = self.settings.seconds_per_token
            self._reported += passages_of(self._world_model, transitions, next_generations, seconds_per_token=cost)

    def report_collection(self, collection: Collection) -> None:
        """Takes everything that happened in a collection; never raises."""
        with self._boundary():
            self.report(*transitions_of(collection))

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The engine gets the weights that training goes on from: of another shape, they are refused now."""
        self._hand_over()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The policy has stepped: so does the world model, on every process."""
        if self._stopped:
            return
        began = time.perf_counter()
        everyone = gather_object([(_reason(self._failure), self._reported)])
        self._reported = []
        if self._stop_at(reason for reason, _ in everyone):
            return
        passages = sorted(chain.from_iterable(reported for _, reported in everyone), key=lambda each: each.order)
        measures, digest = self._step(passages)
        outcomes = gather_object([(_reason(self._failure), digest)])
        if self._stop_at(reason for reason, _ in outcomes):
            return
        if len({digest for _, digest in outcomes}) > 1:
            self._take_first_weights()
        self._hand_over()
        measures["seconds"] = time.perf_counter() - began
        if self._log is not None:
            for name, value in measures.items():
                self._log(f"world_model/{name}", value)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """What went wrong at the very end is told, too."""
        if not self._stopped:
            self._stop_at([_reason(self._failure)])

    @property
    def failed(self) -> bool:
        """Whether co-training has failed: it has ended, or will with this step."""
        return self._learner is None or self._failure is not None

    def save_model(self, folder: str | Path) -> None:
        """Writes the live model as it is now, weights and configuration; its tokenizer is what it was.

        To be called on one process: all have the same.

        Args:
            folder: Where to; it is made.

        Raises:
            ObsSpecError: If co-training has failed, so that there is none.
        """
        if self._learner is None or self.failed:
            raise ObsSpecError("co-training has failed: there is no live world model to write")
        self._learner.model.save_pretrained(folder)

    def state_dict(self) -> dict[str, Any]:
        """What the next steps depend on: weights, optimiser, replay; and calibration. Nothing after a failure."""
        if self._learner is None or self.failed:
            return {}
        return {"learner": self._learner.state_dict(), "calibration": self._world_model.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes back what :meth:`state_dict` gave, and hands the weights over."""
        if not state or self._learner is None:
            return
        with self._boundary():
            self._learner.load_state_dict(state["learner"])
            self._world_model.load_state_dict(state["calibration"])
        self._hand_over()

    def _step(self, passages: Sequence[Passage]) -> tuple[dict[str, float], str]:
        """Scores and trains: the measures, and a digest of the weights."""
        measures: dict[str, float] = {}
        digest = ""
        with self._boundary():
            assert self._learner is not None  # without one there is a failure, and no step
            measures = _scores(self._learner, passages)
            loss = self._learner.learn(passages)
            if loss is not None:
                measures["loss"] = loss
            digest = self._learner.digest()
        return measures, digest

    def _take_first_weights(self) -> None:
        """On every process, where their weights differ."""
        assert self._learner is not None
        weights = [self._learner.cpu_weights()]
        broadcast_object_list(weights, from_process=0)
        self._learner.take_weights(weights[0])

    def _hand_over(self) -> None:
        """Gives the engine the weights; it drops everything it computed with the old ones."""
        if self._learner is not None and self._failure is None:
            with self._boundary():
                self._world_model.engine.update_weights(self._learner.weights())

    @contextmanager
    def _boundary(self) -> Iterator[None]:
        """Keeps what goes wrong for the end of the step, where all processes learn of it together."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a world model never stops a run (I4); told by _stop_at
            self._failure = error

    def _stop_at(self, reasons: Iterable[str]) -> bool:
        """Whether any process has failed: then all stop, in the same step, for no collective may miss one of them.

        Raises:
            ObsSpecError: With ``strict``.
        """
        reason = next(filter(None, reasons), None)
        if reason is None:
            return False
        self._stopped, self._learner = True, None
        if self.settings.strict:
            raise ObsSpecError(f"co-training failed: {reason}") from self._failure
        logger.warning("co-training failed, the run goes on with the world model as it is: %s", reason)
        return True


def _scores(learner: Learner, passages: Sequence[Passage]) -> dict[str, float]:
    """What the live model and its twin would have foreseen."""
    answers = answers_of(passages)
    if not answers:
        return {}
    measures = {"transitions": float(len(answers)), **Score.of(answers, foreseen(learner.model, passages)).to_log()}
    if learner.twin is not None:
        measures |= Score.of(answers, foreseen(learner.twin, passages)).to_log("frozen_")
    return measures


def _language_model(world_model: WorldModel) -> LMWorldModel:
    """The language model that is, or is part of, a world model."""
    models: Sequence[WorldModel] = world_model.models if isinstance(world_model, CascadeWorldModel) else [world_model]
    for model in models:
        if isinstance(model, LMWorldModel):
            return model
    raise InvalidArgumentError(
        f"co-training needs an LMWorldModel or a cascade with one, got {type(world_model).__name__}"
    )


def _load(model: PreTrainedModel | str | Path) -> PreTrainedModel:
    if isinstance(model, PreTrainedModel):
        return model
    return load_model(model_directory(model, "world_model"))


def _reason(failure: Exception | None) -> str:
    return "" if failure is None else f"{type(failure).__name__}: {failure}"
