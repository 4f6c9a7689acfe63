"""Options, bad input, and what starting the command line costs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import obsspec_gym
from obsspec_gym import benchmarks
from obsspec_gym.cli import main
from obsspec_gym.errors import EngineError, InvalidArgumentError

HEAVY = ("torch", "transformers", "matplotlib", "trl", "docker")


def test_help_is_light():
    code = f"""
import sys
from obsspec_gym.cli import main
status = main(["--help"])
print(status, [name for name in {HEAVY} if name in sys.modules])"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("\n0 []\n")
    assert all(f"  {command} " in done.stdout for command in ("demo", "rollout", "bench", "doctor"))


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"{obsspec_gym.__version__}\n"


EXPERT = ["--policy", "expert", "--world-model", "memory"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nonsense"], "No such command 'nonsense'"),
        (["demo", "--envs", "many"], "'--envs'"),
        (["demo", "--envs", "0"], "greater than or equal to 1"),
        (["demo", "--episodes", "-1"], "'--episodes'"),
        (["demo", "--nonsense"], "No such option: --nonsense"),
        (["demo", *EXPERT, "--suite", "nonsense"], "unknown suite 'nonsense'; there are basics, "),
        (["demo", *EXPERT, "--latency", "lognormal:x"], "a latency is 'none', 'remote' or 'lognormal:MEDIAN,SIGMA'"),
        (["demo", *EXPERT, "--sandbox", "nonsense"], "sandbox must be one of bubblewrap, docker, local, got "),
        (["demo", *EXPERT, "--temperature", "100"], "temperature must be in [0, 10], got 100"),
        (["demo", *EXPERT, "--depth", "0"], "it needs a world model and depth >= 1"),
        (["demo", "--policy", "expert", "--world-model", "none"], "it needs a world model and depth >= 1"),
        (["demo", *EXPERT, "--episodes", "20001", "--group", "1"], "20001 are needed"),
        (["demo", "--policy", "/nonsense"], "expected 'shipped' or a directory with a config.json, got '/nonsense'"),
        (["rollout", "--policy", "expert", "--world-model", "/nonsense"], "a directory with a config.json"),
        (["rollout", *EXPERT, "--out", "/proc/nonsense"], "nothing can be written to /proc/nonsense"),
        (["bench"], "Missing argument 'name'"),
        (["bench", "nonsense"], "there is no benchmark 'nonsense'; there are "),
        (["bench", "lossless", "--set", "turns"], "--set takes key=value, got 'turns'"),
        (["bench", "overhead", "--set", "nonsense=1"], "options of benchmark 'overhead' are "),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_started(arguments, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert captured.err.startswith("obsspec: ")
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("module", ["torch", "matplotlib"])
def test_a_missing_extra_is_named_before_anything_is_started(module, capsys, tmp_path, monkeypatch, tiny_pair):
    monkeypatch.setattr("obsspec_gym.speculation.agents.installed", lambda name: name != module)
    monkeypatch.setattr("obsspec_gym.cli.demo.installed", lambda name: name != module)
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "--policy", str(tiny_pair[0]), "--world-model", "memory"]) == 2
    assert f"{module} is needed here and is not installed: pip install 'obsspec_gym[lm]'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_bench_prints_its_measures_as_the_last_line(capsys, monkeypatch):
    asked = {}

    def run(name, *, full, options, report):
        asked.update(name=name, full=full, options=options)
        report("half way")
        return {"benchmark": name, "turns": 7, "spread": {"turns": [1, 2]}}

    monkeypatch.setattr(benchmarks, "run", run)
    words = ["bench", "lossless", "--full", "--turns", "7", "--repeats", "2", "--set", "the-dtype=float64", "--json"]
    assert main(words) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out.splitlines()[-1]) == {
        "benchmark": "lossless",
        "turns": 7,
        "spread": {"turns": [1, 2]},
    }
    assert asked == {
        "name": "lossless",
        "full": True,
        "options": {"turns": 7, "repeats": 2, "the_dtype": "float64"},
    }
    assert "half way" in captured.err
    assert main(["bench", "lossless"]) == 0
    assert "turns" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (InvalidArgumentError("it must be\nanother"), 2, "obsspec: it must be another\n"),
        (EngineError("it broke"), 1, "obsspec: EngineError: it broke\n"),
        (KeyboardInterrupt(), 130, "obsspec: interrupted; everything that was started is ended\n"),
    ],
)
def test_what_goes_wrong_under_way(error, status, said, capsys, monkeypatch):
    def examine():
        raise error

    monkeypatch.setattr("obsspec_gym.cli.doctor.examine", examine)
    assert main(["doctor"]) == status
    assert capsys.readouterr().err == said
