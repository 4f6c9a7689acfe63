"""What differs between two runs is found, and each way of running helps against its own causes."""

from __future__ import annotations

import pytest

from obsspec_gym.benchmarks import determinism, run
from obsspec_gym.envs.sandbox.bubblewrap import bubblewrap_available
from obsspec_gym.envs.sandbox.frozen_clock import frozen_clock_available
from obsspec_gym.errors import InvalidArgumentError

EXPECTED = {
    # command: the ways in which it differs
    "echo hello": set(),
    "pwd": {"plain"},
    "echo $$": {"plain"},
    "date +%s%N": {"plain", "reproducible"},
    "mktemp": {"plain", "reproducible", "frozen"},
    "head -c 8 /dev/urandom | od -An -tx1": {"plain", "reproducible", "masked", "frozen", "canonical"},
}


def test_every_cause_is_met_where_it_should_be(monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := bubblewrap_available() or frozen_clock_available():
        pytest.skip(reason)
    monkeypatch.setattr(determinism, "COMMANDS", tuple(EXPECTED))
    told: list[str] = []
    result = run("determinism", full=False, options={"gap": 0.0}, report=told.append)
    assert result["commands"] == len(EXPECTED)
    for way in ("plain", "reproducible", "masked", "frozen", "canonical"):
        differ = [command for command, ways in EXPECTED.items() if way in ways]
        assert result[way] == {"differ": len(differ), "commands": differ}
    assert told


def test_no_command_sees_what_another_did(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has two fresh sandboxes of its own, and those about a repository have one."""
    if reason := bubblewrap_available():
        pytest.skip(reason)
    commands = ["echo >seen; echo $$; ls", "ls seen", "git log --format=%s"]
    runs = determinism._run_once("bubblewrap", {}, commands)
    (first, _), (second, _), (third, _) = runs
    assert first.output.startswith(b"2\n")
    assert second.exit_code == 2
    if third.exit_code != 127:  # there is git
        assert third.output == b"start\n"


def test_there_are_enough_everyday_commands() -> None:
    assert len(set(determinism.COMMANDS)) == len(determinism.COMMANDS) >= 40
    with pytest.raises(InvalidArgumentError, match="gap must be >= 0"):
        run("determinism", full=False, options={"gap": -1}, report=print)
