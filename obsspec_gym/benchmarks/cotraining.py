"""Does the world model keep up? Co-trained against its frozen twin, on the policy's own rollouts in real sandboxes.

The policy plays batches of tasks that it has not played before, as in training. Before anything is learnt from a batch,
both world models are asked what each command of it would print: the live one, trained after every batch as
``WorldModelCoTrainingCallback`` trains it, and its twin as it was at first. No memory answers for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from typing import Any

from obsspec_gym.agents.lm_policy import load_policy
from obsspec_gym.agents.loading import load_model, model_directory
from obsspec_gym.agents.world_model.lm import LMWorldModel
from obsspec_gym.agents.world_model.loading import load_world_model
from obsspec_gym.benchmarks.paired import bootstrap, mcnemar
from obsspec_gym.envs.latency import LatencyProfile
from obsspec_gym.envs.tasks import get_suite
from obsspec_gym.envs.vector import TerminalVectorEnv
from obsspec_gym.errors import InvalidArgumentError, ObsSpecError
from obsspec_gym.speculation.collector import Collection, collect
from obsspec_gym.training.cotraining_settings import CoTraining
from obsspec_gym.training.learner import Learner
from obsspec_gym.training.passages import Answer, passages_of, transitions_of
from obsspec_gym.training.rollout import name_episodes
from obsspec_gym.training.scoring import Score, answers_of, foreseen

DEFAULTS: dict[str, Any] = {
    "transitions": 2000,
    "suite": "terminal:templates",
    "first": 10_000,
    "tasks": 8,
    "group": 4,
    "envs": 8,
    "sandbox": "bubblewrap",
    "latency": "lognormal:0.1,0.7",
    "work": 0.1,
    "steps": 4,
    "learning_rate": 6e-4,
    "ema_decay": 0.8,
    "time_weight": 0.0,
    "seconds_per_token": 0.004,
    "seed": 0,
}
FULL: dict[str, Any] = {"transitions": 8000, "work": 1.0}


def run(
    *,
    transitions: int,
    suite: str,
    first: int,
    tasks: int,
    group: int,
    envs: int,
    sandbox: str,
    latency: str,
    work: float,
    steps: int,
    learning_rate: float,
    ema_decay: float,
    time_weight: float,
    seconds_per_token: float,
    seed: int,
    report: Callable[[str], None],
) -> dict[str, Any]:
    """Plays until there are so many transitions.

    Args:
        transitions: How many at least.
        suite: Where tasks come from.
        first: Index of the first task; of generated suites those from 10,000 on are for training.
        tasks: Tasks of a policy step.
        group: Episodes of each.
        envs: Sandboxes at once.
        sandbox: Their kind.
        latency: Delay added to every command.
        work: Scales how long slow commands take.
        steps: Optimiser steps of the world model after each policy step.
        learning_rate: Theirs.
        ema_decay: How much of the live weights, an average, stays at each policy step.
        time_weight: How much seconds weigh in its loss.
        seconds_per_token: What a predicted token costs: so much later a prediction is there.
        seed: Seeds completions and draws.
        report: Is told about progress.

    Returns:
        ``transitions``; ``live_match_rate`` and ``frozen_match_rate`` (all, ``_nonempty`` and ``_time_weighted``);
        ``gain``, their difference, with ``gain_low`` and ``gain_high`` (95 % bootstrap interval over tasks) and
        ``p_value`` (exact McNemar test over transitions); ``live_hidden_seconds`` and ``frozen_hidden_seconds``; and
        ``curve``, the same by policy step.
    """
    for name, value in {"transitions": transitions, "tasks": tasks, "group": group, "envs": envs}.items():
        if value < 1:
            raise InvalidArgumentError(f"{name} must be >= 1, got {value}")
    settings = CoTraining(
        steps=steps,
        learning_rate=learning_rate,
        ema_decay=ema_decay,
        time_weight=time_weight,
        seconds_per_token=seconds_per_token,
        seed=seed,
    )
    source = get_suite(suite, work=work)
    delays = LatencyProfile.parse(latency)
    contest = _Contest(settings)
    with ExitStack() as stack:
        policy = load_policy("shipped")
        stack.callback(policy.close)
        world_model = load_world_model("shipped")
        stack.callback(world_model.close)
        assert isinstance(world_model, LMWorldModel)
        terminals = TerminalVectorEnv(envs, suite=source, sandbox=sandbox, latency=delays)
        stack.callback(terminals.close)
        for step in count():
            numbers = [first + step * tasks + index for index in range(tasks) for _ in range(group)]
            episodes = name_episodes(numbers, source)
            collection = collect(terminals, episodes, policy, run_seed=seed, policy_step=step)
            contest.add(world_model, collection)
            report(contest.progress)
            if len(contest.answers) >= transitions:
                break
    return {**contest.to_json(seed), "suite": suite}


class _Contest:
    """The live model against its twin."""

    def __init__(self, settings: CoTraining) -> None:
        self._settings = settings
        self._learner = Learner(_shipped(), settings)
        self.answers: list[Answer] = []
        self._tasks: list[str] = []
        self._live: list[bool] = []
        self._frozen: list[bool] = []
        self._curve: list[dict[str, Any]] = []

    def add(self, world_model: LMWorldModel, collection: Collection) -> None:
        """Asks both about a batch; then the live one learns from it."""
        twin = self._learner.twin
        assert twin is not None
        began = time.perf_counter()
        cost = self._settings.seconds_per_token
        passages = passages_of(world_model, *transitions_of(collection), seconds_per_token=cost)
        answers = answers_of(passages)
        if not answers:
            raise ObsSpecError(f"no episode of a whole batch got anywhere: {collection.trajectories[0].reason}")
        live, frozen = foreseen(self._learner.model, passages), foreseen(twin, passages)
        loss = self._learner.learn(passages)
        self.answers += answers
        self._tasks += [passage.task_id for passage in passages for _ in passage.answers]
        self._live += live
        self._frozen += frozen
        scores = {**Score.of(answers, live).to_log("live_"), **Score.of(answers, frozen).to_log("frozen_")}
        seconds = time.perf_counter() - began
        self._curve.append({"transitions": len(answers), "loss": loss, "seconds": seconds, **scores})

    @property
    def progress(self) -> str:
        """One line."""
        live, frozen = sum(self._live) / len(self.answers), sum(self._frozen) / len(self.answers)
        return f"{len(self.answers)} transitions: live {live:.3f}, frozen {frozen:.3f}"

    def to_json(self, seed: int) -> dict[str, Any]:
        """Everything, over all transitions."""
        live, frozen = Score.of(self.answers, self._live), Score.of(self.answers, self._frozen)
        differences = [float(one) - float(other) for one, other in zip(self._live, self._frozen, strict=True)]
        low, high = bootstrap(differences, self._tasks, seed=seed)
        return {
            "transitions": len(self.answers),
            **live.to_log("live_"),
            **frozen.to_log("frozen_"),
            "gain": sum(differences) / len(differences),
            "gain_low": low,
            "gain_high": high,
            "p_value": mcnemar(self._live, self._frozen),
            "tasks": len(set(self._tasks)),
            "tool_seconds": sum(answer.tool_seconds for answer in self.answers),
            "hidable_seconds": sum(answer.hidable_seconds for answer in self.answers),
            "curve": self._curve,
        }


def _shipped() -> Any:
    return load_model(model_directory("shipped", "world_model"))
