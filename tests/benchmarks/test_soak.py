"""The soak, in small: results are not mixed up, and nothing is left of a killed owner."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from obsspec_gym.envs.sandbox.bubblewrap import bubblewrap_available

SOAK = Path(__file__).parents[2] / "benchmarks" / "soak.py"


@pytest.mark.parametrize("kind", ["bubblewrap", "local"])
def test_results_are_not_mixed_up_and_nothing_is_left(kind: str) -> None:
    if kind == "bubblewrap" and (reason := bubblewrap_available()):
        pytest.skip(reason)
    words = [sys.executable, str(SOAK), "--kind", kind, "--sandboxes", "4", "--commands", "80"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["owner_killed_with_processes"] >= 8
    assert found["owner_killed_with_supervisors"] >= 8  # of each sandbox at least the supervisor and the shell
    assert found["left_supervisors"] == 0
    assert (found["commands"], found["mismatched"], found["left_processes"], found["left_files"]) == (80, 0, 0, [])
