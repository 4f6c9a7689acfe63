"""Evaluates a pair: how much the policy solves, and how well the world model foresees the policy's own rollouts.

Episodes are of the ranges that are never trained on, in real sandboxes, slow commands at full length. World models
are asked about every turn of recorded rollouts (temperature 1), so no race against the tool is part of it.

Example::

    python -m agents.evaluate --policy obsspec_gym/agents/shipped/policy \\
        --world-model obsspec_gym/agents/shipped/world_model --episodes 200 --out build/pair/evaluation.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import AutoTokenizer

from agents.corpus import LONGEST, SLOW, SUITES
from obsspec_gym.agents.engine.transformers import TransformersEngine
from obsspec_gym.agents.history import History
from obsspec_gym.agents.lm_policy import LMPolicy
from obsspec_gym.agents.world_model.base import WorldModel
from obsspec_gym.agents.world_model.cascade import CascadeWorldModel
from obsspec_gym.agents.world_model.confidence import Confidence
from obsspec_gym.agents.world_model.lm import LMWorldModel
from obsspec_gym.agents.world_model.memory import MemoryWorldModel
from obsspec_gym.envs.tasks import get_suite
from obsspec_gym.envs.vector import TerminalVectorEnv
from obsspec_gym.speculation.collector import collect_async
from obsspec_gym.speculation.slot import Episode
from obsspec_gym.speculation.trajectory import Trajectory
from obsspec_gym.types import EpisodeId, Outcome, Sampling, Transition

THRESHOLDS = (0.5, 0.7, 0.8, 0.85, 0.875, 0.9, 0.95)
"""Probabilities from which a prediction counts as gated in."""

PREDICTABLE = (*sorted(SLOW), "sed -i", "echo ")
"""Commands whose output a reader of the history can often tell; the others show unseen files or new numbers."""

_QUICK, _TIMED = 8, 2
"""Environments side by side. More than there are cores make every tool look slow: not where durations count."""

_GROUP = 8

_SPLITS = ("", ":words", ":templates")


@dataclass(frozen=True)
class Attempt:
    """One prediction, verified.

    Attributes:
        family: Of the task.
        command: What was executed.
        observation: What came back.
        seconds: How long the tool ran.
        matched: Whether observation and end were predicted exactly.
        confidence: What the model said; 0 where it predicted nothing.
    """

    family: str
    command: str
    observation: str
    seconds: float
    matched: bool
    confidence: float


def family_of(task_id: str) -> str:
    """``tests`` for ``basics/tests:words/3``."""
    return task_id.split("/")[1].split(":")[0]


async def rollouts(
    policy: LMPolicy, suite: str, tasks: Sequence[int], samples: int, work: float, sandbox: str, environments: int
) -> Sequence[Trajectory]:
    """The policy's own rollouts, without speculation."""
    source = get_suite(suite, work=work)
    episodes = [
        Episode(EpisodeId(source.task(index).id, sample), options={"task": index, "sample": sample})
        for index in tasks
        for sample in range(samples)
    ]
    terminals = TerminalVectorEnv(environments, suite=source, sandbox=sandbox)
    try:
        return (await collect_async(terminals, episodes, policy)).trajectories
    finally:
        terminals.close()


def solved(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Share of solved episodes, in all and per family."""
    rewards: dict[str, list[float]] = {"all": []}
    for trajectory in trajectories:
        rewards["all"].append(trajectory.reward)
        rewards.setdefault(family_of(trajectory.episode.task_id), []).append(trajectory.reward)
    return {name: round(sum(values) / len(values), 4) for name, values in rewards.items()}


async def foresee(model: WorldModel, trajectories: Sequence[Trajectory]) -> list[Attempt]:
    """Asks a world model about every turn but the last, in the order given, and tells it what really happened."""
    attempts = []
    for trajectory in trajectories:
        history = History.start(trajectory.episode, _instruction(trajectory))
        for number, step in enumerate(trajectory.steps, 1):
            ends = number == len(trajectory.steps)
            predictions = await model.predict(history, step.action, 1)
            outcome = Outcome(step.observation, ends)
            history = history.act(step.action)
            model.observe(Transition(history, outcome, step.tool_seconds))
            history = history.observe(step.observation)
            if not ends:
                best = predictions[0] if predictions else None
                matched = best is not None and best.observation == step.observation and not best.ends
                confidence = best.probability if best is not None else 0.0
                family = family_of(trajectory.episode.task_id)
                attempts.append(Attempt(family, step.action, step.observation, step.tool_seconds, matched, confidence))
    return attempts


def _instruction(trajectory: Trajectory) -> str:
    assert trajectory.history is not None
    return str(trajectory.history.first_observation)


def rates(attempts: Sequence[Attempt]) -> dict[str, float]:
    """Match rate by count and by tool seconds."""
    seconds = sum(attempt.seconds for attempt in attempts)
    hits = [attempt for attempt in attempts if attempt.matched]
    return {
        "turns": len(attempts),
        "match_rate": round(len(hits) / max(1, len(attempts)), 4),
        "time_weighted_match_rate": round(sum(hit.seconds for hit in hits) / max(1e-9, seconds), 4),
        "tool_seconds": round(seconds, 2),
    }


def gated(attempts: Sequence[Attempt], threshold: float) -> dict[str, float]:
    """Precision and coverage of the predictions with at least this confidence."""
    kept = [attempt for attempt in attempts if attempt.confidence >= threshold]
    seconds = sum(attempt.seconds for attempt in attempts)
    return {
        "threshold": threshold,
        "precision": round(sum(attempt.matched for attempt in kept) / max(1, len(kept)), 4),
        "turns_covered": round(len(kept) / max(1, len(attempts)), 4),
        "tool_time_covered": round(sum(attempt.seconds for attempt in kept) / max(1e-9, seconds), 4),
    }


def summary(attempts: Sequence[Attempt]) -> dict[str, dict[str, float]]:
    """Rates of all attempts and of the parts that tell more."""
    parts = {
        "all": attempts,
        "non_empty": [attempt for attempt in attempts if not attempt.observation.startswith("[")],
        "predictable": [attempt for attempt in attempts if attempt.command.startswith(PREDICTABLE)],
        "over_20_ms": [attempt for attempt in attempts if attempt.seconds > 0.02],
    }
    for family in sorted({attempt.family for attempt in attempts}):
        parts[family] = [attempt for attempt in attempts if attempt.family == family]
    return {name: rates(part) for name, part in parts.items() if part}


async def evaluate(args: argparse.Namespace) -> dict[str, object]:
    """Everything the card reports."""
    tokenizer = AutoTokenizer.from_pretrained(args.policy, local_files_only=True)
    result: dict[str, object] = {
        "first_task": args.first,
        "episodes": args.episodes,
        "sampled_episodes": args.sampled,
        "work": args.work,
        "sandbox": args.sandbox,
    }
    started = time.perf_counter()

    def note(name: str, value: object) -> None:
        result[name] = value
        print(f"{time.perf_counter() - started:6.0f} s  {name}: {json.dumps(value)}", file=sys.stderr, flush=True)

    with TransformersEngine(args.policy) as engine:
        policy = LMPolicy(engine, tokenizer, sampling=Sampling(max_tokens=LONGEST))
        greedy = policy.with_sampling(Sampling(temperature=0.0, max_tokens=LONGEST))
        tasks = range(args.first, args.first + args.episodes)
        for suite in (f"{suite}{split}" for suite in SUITES for split in _SPLITS):
            # Greedy rates need no real durations.
            trajectories = await rollouts(greedy, suite, tasks, 1, min(args.work, 0.1), args.sandbox, _QUICK)
            note(f"solved_greedy_{suite}", solved(trajectories))
        sampled = range(args.first, args.first + args.sampled)
        own = {
            suite: await rollouts(policy, suite, more, 1, args.work, args.sandbox, _TIMED)
            for suite, more in (("basics", sampled), ("terminal", sampled[: args.sampled // 2]))
        }
        for suite, trajectories in own.items():
            note(f"solved_sampled_{suite}", solved(trajectories))
        groups = await rollouts(policy, "basics", tasks[: args.groups], _GROUP, args.work, args.sandbox, _TIMED)
        note("groups", mixed(groups))
    with TransformersEngine(args.world_model) as engine:
        confidence = Confidence.load(args.world_model)
        raw = _Raw(engine, tokenizer, confidence=confidence)
        everything = await foresee(raw, own["terminal"])
        note("world_model_terminal", summary(everything))
        note("world_model_terminal_gated_0.85", gated(everything, 0.85))
        attempts = await foresee(raw, own["basics"])
        note("world_model", summary(attempts))
        for threshold in THRESHOLDS:
            note(f"world_model_gated_{threshold}", gated(attempts, threshold))
        # The members of a group run side by side; here they come one after the other.
        note("world_model_groups", summary(await foresee(raw, groups)))
        cascade = CascadeWorldModel([MemoryWorldModel(), LMWorldModel(engine, tokenizer, confidence=confidence)])
        note("memory_and_world_model_groups", summary(await foresee(cascade, groups)))
    return result


class _Raw(LMWorldModel):
    """The language model alone: how sure it is was fitted on tasks of training, nothing is calibrated on the test."""

    def observe(self, transition: Transition) -> None:
        """Learns nothing."""


def mixed(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """How many groups have members that solve the task and members that do not: where training can learn."""
    groups: dict[str, set[float]] = {}
    for trajectory in trajectories:
        groups.setdefault(trajectory.episode.task_id, set()).add(trajectory.reward)
    return {"groups": len(groups), "mixed": sum(len(rewards) > 1 for rewards in groups.values())}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Evaluate a policy and a world model.")
    parser.add_argument("--policy", type=Path, required=True)
    parser.add_argument("--world-model", type=Path, required=True)
    parser.add_argument("--first", type=int, default=3000, help="index of the first task")
    parser.add_argument("--episodes", type=int, default=100, help="greedy episodes, a suite and split")
    parser.add_argument(
        "--sampled",
        type=int,
        default=400,
        help="episodes at temperature 1, which are foreseen; half as many of the suite terminal",
    )
    parser.add_argument("--groups", type=int, default=12, help="groups of 8 episodes of one task")
    parser.add_argument("--work", type=float, default=1.0)
    parser.add_argument("--sandbox", default="bubblewrap")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    result = asyncio.run(evaluate(args))
    text = json.dumps(result, indent=1)
    print(text)
    if args.out is not None:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
