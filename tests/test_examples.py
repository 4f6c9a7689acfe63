"""The examples run, from top to bottom, and show what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name: str, *words: str) -> str:
    done = subprocess.run([sys.executable, str(EXAMPLES / name), *words], capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["frozen_lake.py", "cartpole.py", "text_world.py"])
def test_gymnasium(name: str):
    if name == "text_world.py":
        pytest.importorskip("textworld", reason="TextWorld (PyPI textworld) is not installed")
    said = run(name)
    assert "saved, trajectories equal: True\n" in said
    assert "False" not in said


def test_own_loop():
    first, second = run("own_loop.py").split("sample 0")
    assert "(foreseen)" not in first
    assert second.count("(foreseen)") == 3


@pytest.mark.parametrize("name", ["async_agent.py", "sync_agent.py"])
def test_somebody_elses_agent(name):
    """The memory knows nothing in the first sample, and everything that the first one saw in the second."""
    lines = [line for line in run(name).splitlines() if " -> " in line]
    assert len(lines) == 6
    assert [line.endswith("begun ahead") for line in lines] == [False] * 3 + [True] * 3
    assert len((EXAMPLES / name).read_text().splitlines()) <= 40


def test_terminal():
    from obsspec_gym.envs.sandbox.bubblewrap import bubblewrap_available

    if bubblewrap_available() is not None:
        pytest.skip("no namespaces here")
    found = re.search(r"(\d+) of (\d+) episodes solved; (\d+) of 32 observations", run("terminal.py"))
    assert found is not None
    assert int(found[1]) <= int(found[2])


def test_grpo_terminal(tmp_path: Path):
    from obsspec_gym.envs.sandbox.bubblewrap import bubblewrap_available

    pytest.importorskip("trl")
    if bubblewrap_available() is not None:
        pytest.skip("no namespaces here")
    words = ["--steps", "1", "--tasks", "1", "--group", "2", "--latency", "none", "--out", str(tmp_path)]
    assert "'reward': " in run("grpo_terminal.py", *words)
    assert (tmp_path / "model.safetensors").is_file()


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_is_short(path):
    assert len(path.read_text().splitlines()) <= 60
