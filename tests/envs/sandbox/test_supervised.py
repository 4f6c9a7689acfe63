"""Supervisors are nobody's shell: they read no user's files, and leave none."""

from __future__ import annotations

from contextlib import closing

import pytest

from obsspec_gym.envs.sandbox import make_sandbox


@pytest.mark.filterwarnings("ignore::obsspec_gym.envs.sandbox.local.NoIsolationWarning")
def test_a_supervisor_has_no_history_of_whoever_runs_it() -> None:
    with closing(make_sandbox("local")) as sandbox:
        sandbox.start()
        environment = sandbox.run("tr '\\0' '\\n' </proc/$PPID/environ | sort").output.decode().splitlines()
    assert "HISTFILE=" in environment  # set and empty: bash would look for one in the home of whose process it is
    assert "HOME=/" in environment
    assert len(environment) == 5
