"""The paper's settings (PAPERS 1) on the virtual clock, its numbers beside ours.

The parameters of both servers, of lengths and of tool times were fixed before any result was looked at
(:mod:`obsspec_gym.speculation.profiles`); they are not tuned to these numbers. Where ours differ it is said by how
much, and what bounds them: the oracle, how busy the server is, and what did not fit into its cache.
"""

from __future__ import annotations

import multiprocessing
import os
from dataclasses import replace
from multiprocessing.pool import AsyncResult, Pool
from typing import Any

from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.speculation.profiles import Profile, get_profile, with_scaled
from obsspec_gym.speculation.sensitivity import FACTORS, compare
from obsspec_gym.speculation.simulate import Setting, Simulated, simulate

DEFAULTS: dict[str, Any] = {"rollouts": 0, "seed": 0}
FULL: dict[str, Any] = {"rollouts": 256}

SAVING = {"paper-8b": 0.093, "paper-32b": 0.142}
"""Of agent latency at depth 1 and breadth 1."""
MATCH_RATE = 0.664
DISCARDED = {1: 198.0, 8: 472.0}
"""Discarded policy tokens a rollout, by depth."""
BREADTH_8 = 1.253
"""Agent latency at breadth 8 / at breadth 1."""
DEPTHS = (1, 2, 4, 8)
BREADTHS = (1, 2, 4, 8)
WITHIN = 0.25
"""A number counts as hit within so much of the paper's."""

ENVS = {"paper-8b": (16, 32, 64), "paper-32b": (16, 64)}
"""Rollouts at a time on one server: what published configurations use, and half and twice that."""

_ONE = Setting(match_rate=MATCH_RATE)
_SETTINGS = {
    "sequential": replace(_ONE, depth=0),
    "depth_1": _ONE,
    "always_right": replace(_ONE, match_rate=1.0),
    "adaptive": replace(_ONE, depth=8, breadth=8, adaptive=True),
}


def run(*, rollouts: int, seed: int, report: Any) -> dict[str, Any]:
    """Every setting of both profiles, on all cores.

    Args:
        rollouts: Episodes of a simulation; 0 for twice as many as run at a time.
        seed: Which episodes.
        report: Is told about progress.

    Returns:
        For each profile: ``saving`` by rollouts at a time, with the limit of a world model that is always right and
        the adaptive selector beside it; ``discarded_tokens`` by depth; ``latency_ratio`` by breadth (to breadth 1);
        ``sensitivity`` of the saving to each assumed parameter; and for each of the paper's numbers ``paper``,
        ``ours``, ``hit`` and ``why``.
    """
    if rollouts < 0:
        raise InvalidArgumentError(f"rollouts must be >= 0, got {rollouts}")
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:  # ends its processes when it is left
        pending = {name: _Pending(pool, get_profile(name), rollouts, seed) for name in SAVING}
        result: dict[str, Any] = {}
        for name, each in pending.items():
            result[name.replace("-", "_")] = each.result(report)
    return result


class _Pending:
    """The simulations of one profile, under way."""

    def __init__(self, pool: Pool, profile: Profile, rollouts: int, seed: int) -> None:
        self._pool, self._profile, self._rollouts, self._seed = pool, profile, rollouts, seed
        self._runs: dict[tuple[Any, ...], AsyncResult[Simulated]] = {}
        envs = profile.rollouts
        for each in ENVS[profile.name]:
            for key, setting in _SETTINGS.items():
                self._start(("envs", each, key), profile, setting, each)
        for depth in DEPTHS[1:]:
            self._start(("depth", depth), profile, replace(_ONE, depth=depth), envs)
        for breadth in BREADTHS[1:]:
            self._start(("breadth", breadth), profile, replace(_ONE, breadth=breadth), envs)
        for attribute in profile.assumed:
            for factor in FACTORS:
                other = with_scaled(profile, attribute, factor)
                for key in ("sequential", "depth_1"):
                    self._start(("assumed", attribute, factor, key), other, _SETTINGS[key], envs)

    def _start(self, key: tuple[Any, ...], profile: Profile, setting: Setting, envs: int) -> None:
        count = self._rollouts or 2 * envs
        self._runs[key] = self._pool.apply_async(
            simulate, (profile, setting), {"rollouts": count, "envs": envs, "seed": self._seed}
        )

    def _get(self, *key: Any) -> Simulated:
        return self._runs[key].get()

    def result(self, report: Any) -> dict[str, Any]:
        """Waits for all of them."""
        name, envs = self._profile.name, self._profile.rollouts
        for number, run in enumerate(self._runs.values()):
            run.get()
            report(f"{name}: simulation {number + 1} of {len(self._runs)}")
        by_envs = {str(each): self._savings(each) for each in ENVS[name]}
        one = self._get("envs", envs, "depth_1")
        discarded = {depth: one if depth == 1 else self._get("depth", depth) for depth in DEPTHS}
        latency = {breadth: one if breadth == 1 else self._get("breadth", breadth) for breadth in BREADTHS}
        tokens = {depth: float(run.measures.discarded_tokens or 0.0) for depth, run in discarded.items()}
        base = one.measures.agent_latency or 1.0
        ratios = {breadth: (run.measures.agent_latency or 0.0) / base for breadth, run in latency.items()}
        ours = by_envs[str(envs)]["saving"]
        bound = (
            f"at {envs} rollouts the server is busy {by_envs[str(envs)]['busy']:.0%} of the time, put back "
            f"{by_envs[str(envs)]['put_back']} requests, and an always right world model would save "
            f"{by_envs[str(envs)]['limit']:.1%}"
        )
        return {
            "rollouts_at_a_time": by_envs,
            "discarded_tokens_by_depth": {str(depth): count for depth, count in tokens.items()},
            "latency_by_depth": {
                str(depth): (run.measures.agent_latency or 0.0) / base for depth, run in discarded.items()
            },
            "latency_by_breadth": {str(breadth): ratio for breadth, ratio in ratios.items()},
            "sensitivity": self._sensitivity(),
            "paper": {
                "saving": _beside(SAVING[name], ours, bound),
                "discarded_tokens_depth_1": _beside(
                    DISCARDED[1], tokens[1], "turns and lengths of completions here are assumptions"
                ),
                "discarded_tokens_growth": _beside(
                    DISCARDED[8] / DISCARDED[1],
                    tokens[8] / tokens[1] if tokens[1] else 0.0,
                    "deeper levels begin only where a tool outlasts a whole generation",
                ),
                "latency_breadth_8": _beside(BREADTH_8, ratios[8], bound),
            },
        }

    def _savings(self, envs: int) -> dict[str, float]:
        runs = {key: self._get("envs", envs, key) for key in _SETTINGS}
        sequential = runs["sequential"]
        ratios = {key: compare(sequential, run)["agent_latency_ratio"] for key, run in runs.items()}
        return {
            "saving": 1 - ratios["depth_1"],
            "adaptive_saving": 1 - ratios["adaptive"],
            "limit": 1 - ratios["always_right"],
            "generation_tool_ratio": compare(sequential, sequential)["generation_tool_ratio"],
            "busy": sequential.server.busy / sequential.measures.batch_latency,
            "put_back": sequential.server.preempted,
        }

    def _sensitivity(self) -> dict[str, dict[str, float]]:
        return {
            attribute: {
                f"x{factor:g}": 1
                - compare(
                    self._get("assumed", attribute, factor, "sequential"),
                    self._get("assumed", attribute, factor, "depth_1"),
                )["agent_latency_ratio"]
                for factor in FACTORS
            }
            for attribute in self._profile.assumed
        }


def _beside(paper: float, ours: float, why: str) -> dict[str, Any]:
    hit = abs(ours - paper) <= WITHIN * abs(paper)
    return {"paper": paper, "ours": ours, "hit": hit, "why": "" if hit else why}
