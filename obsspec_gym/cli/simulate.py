"""``obsspec simulate``: what speculation would bring to a workload, on the virtual clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from rich.console import Console
from rich.table import Table

from obsspec_gym.speculation.metrics import measure
from obsspec_gym.speculation.profiles import Profile, get_profile, profile_of_turns
from obsspec_gym.speculation.sensitivity import compare, sensitivity_of
from obsspec_gym.speculation.simulate import Setting, Simulated, simulate
from obsspec_gym.speculation.trace import read_trace

_FILE = "trace:"


def find_profile(name: str) -> tuple[Profile, float | None]:
    """A profile by name, or that of a trace, with the match rate seen there.

    Raises:
        InvalidArgumentError: If there is none, or the file is no trace.
    """
    if not name.startswith(_FILE):
        return get_profile(name), None
    trace = read_trace(name.removeprefix(_FILE))
    return profile_of_turns(name, trace.turns, get_profile("paper-8b")), measure(trace).match_rate


def run_simulation(
    name: str,
    *,
    match_rate: float | None,
    prediction_seconds: float | None,
    depth: int,
    breadth: int,
    adaptive: bool,
    rollouts: int | None,
    envs: int | None,
    seed: int,
    sensitivity: bool,
    echo: bool,
) -> dict[str, Any]:
    """Simulates a profile without speculation and with it, and prints the comparison.

    Args:
        name: A profile's name, or ``trace:FILE``.
        match_rate: Probability that a prediction is right; by default what the trace shows, or the paper's 0.664.
        prediction_seconds: Seconds of a prediction; by default a world model's decoding steps as in the profile.
        depth: Observations ahead.
        breadth: Alternatives at each level.
        adaptive: Whether depth and breadth are bounds up to which the adaptive selector chooses.
        rollouts: Episodes; by default four for each that runs at a time.
        envs: Episodes at a time; by default the profile's.
        seed: Which episodes.
        sensitivity: Whether to show what hangs on each assumed parameter.
        echo: Whether to print tables for people.

    Returns:
        Both runs' measures, their ratio, the server's counters, and the ratio with each assumption scaled.
    """
    profile, seen = find_profile(name)
    envs = profile.rollouts if envs is None else envs
    rollouts = 4 * envs if rollouts is None else rollouts
    rate = match_rate if match_rate is not None else seen if seen is not None else Setting().match_rate
    off = Setting(rate, prediction_seconds, depth=0)
    on = replace(off, depth=depth, breadth=breadth, adaptive=adaptive)
    runs = {
        "sequential": simulate(profile, off, rollouts=rollouts, envs=envs, seed=seed),
        "speculative": simulate(profile, on, rollouts=rollouts, envs=envs, seed=seed),
    }
    result: dict[str, Any] = {
        "profile": profile.name,
        "match_rate": rate,
        "depth": depth,
        "breadth": breadth,
        "adaptive": adaptive,
        "rollouts": rollouts,
        "envs": envs,
        **compare(runs["sequential"], runs["speculative"]),
        "sequential": as_plain(runs["sequential"]),
        "speculative": as_plain(runs["speculative"]),
    }
    if sensitivity:
        result["sensitivity"] = sensitivity_of(profile, off, on, rollouts=envs, envs=envs, seed=seed)
    if echo:
        _print(result)
    return result


def as_plain(run: Simulated) -> dict[str, Any]:
    """Measures and server counters as plain values."""
    return {**run.measures.to_json(), "server": asdict(run.server)}


def _print(result: dict[str, Any]) -> None:
    console = Console()
    title = f"{result['profile']}: {result['rollouts']} rollouts, {result['envs']} at a time"
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("")
    for name in ("sequential", "speculative"):
        table.add_column(name, justify="right")
    for label, row in _rows(result):
        table.add_row(label, *row)
    console.print(table)
    console.print(f"agent latency x {result['agent_latency_ratio']:.3f}, throughput x {result['throughput_ratio']:.3f}")
    for attribute, ratios in result.get("sensitivity", {}).items():
        told = ", ".join(f"{factor}: x {ratio:.3f}" for factor, ratio in ratios.items())
        console.print(f"  if {attribute} is {told}")


def _rows(result: dict[str, Any]) -> Sequence[tuple[str, list[str]]]:
    sides = [result["sequential"], result["speculative"]]

    def row(key: str, pattern: str) -> list[str]:
        return ["–" if side[key] is None else format(side[key], pattern) for side in sides]

    busy = [side["server"]["busy"] / side["batch_latency"] if side["batch_latency"] else 0.0 for side in sides]
    return [
        ("agent latency, s", row("agent_latency", ".1f")),
        ("rollouts an hour", row("throughput", ".0f")),
        ("generation / tool", row("generation_tool_ratio", ".2f")),
        ("match rate", row("match_rate", ".3f")),
        ("hidden generation, s", row("hidden_seconds", ".0f")),
        ("discarded tokens a rollout", row("discarded_tokens", ".0f")),
        ("server busy", [f"{share:.0%}" for share in busy]),
        ("requests put back", [str(side["server"]["preempted"]) for side in sides]),
    ]
