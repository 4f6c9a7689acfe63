import ast
import importlib.resources
import pathlib
import subprocess
import sys

import gymnasium as gym
import pytest

import obsspec_gym

PUBLIC = [
    "AdaptiveSelector",
    "Budget",
    "CascadeWorldModel",
    "ClosedError",
    "Collection",
    "Comparison",
    "Completion",
    "Engine",
    "EngineError",
    "Episode",
    "EpisodeId",
    "FinishReason",
    "FixedSelector",
    "GenerationCancelled",
    "History",
    "InvalidArgumentError",
    "LMPolicy",
    "LMWorldModel",
    "LatencyProfile",
    "MalformedCall",
    "Measures",
    "MemoryWorldModel",
    "MissingExtraError",
    "ObsSpecEnv",
    "ObsSpecError",
    "ObsSpecVectorEnv",
    "ObservationFormat",
    "Off",
    "Outcome",
    "Policy",
    "Prediction",
    "Priority",
    "Sampling",
    "Sandbox",
    "SandboxError",
    "SandboxUnavailableError",
    "ScriptedPolicy",
    "ScriptedWorldModel",
    "Selector",
    "ServerEngine",
    "Speculator",
    "Step",
    "Suite",
    "TabularWorldModel",
    "Task",
    "TerminalEnv",
    "TerminalText",
    "TerminalVectorEnv",
    "ThreadVectorEnv",
    "Trajectory",
    "TransformersEngine",
    "Transition",
    "Turn",
    "WorldModel",
    "__version__",
    "collect",
    "collect_async",
    "compare",
    "get_suite",
    "load_policy",
    "load_world_model",
    "make_sandbox",
    "measure",
    "suite_names",
]


def test_public_names_are_exactly_these():
    assert obsspec_gym.__all__ == sorted(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_public_name_is_there(name):
    value = getattr(obsspec_gym, name)
    assert name == "__version__" or value.__name__ == name
    assert name in dir(obsspec_gym)


def test_type_checkers_see_the_same_names():
    tree = ast.parse(pathlib.Path(obsspec_gym.__file__).read_text())
    imported = [
        (f"{node.module}", alias.name)
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    assert sorted(name for _, name in imported) == sorted(set(PUBLIC) - {"__version__"})
    for module, name in imported:
        assert getattr(importlib.import_module(module), name) is getattr(obsspec_gym, name)


def test_unknown_name():
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = obsspec_gym.Nonsense


def test_import_is_light():
    heavy = ["torch", "trl", "transformers", "docker", "matplotlib", "typer", "asyncio"]
    code = f"import sys, gymnasium; before = set(sys.modules); import obsspec_gym; new = set(sys.modules) - before; \
print([m for m in {heavy} if m in new], sorted(m for m in new if m.startswith('obsspec_gym')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[] ['obsspec_gym']\n"


def test_terminals_are_light_too():
    heavy = ["torch", "trl", "transformers", "docker", "matplotlib"]
    code = f"import sys, obsspec_gym; obsspec_gym.TerminalVectorEnv(2, suite='basics', sandbox='local').close(); \
print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_registered():
    spec = gym.spec("obsspec_gym/Terminal-v0")
    assert spec.entry_point == "obsspec_gym.envs.terminal:TerminalEnv"
    assert spec.vector_entry_point == "obsspec_gym.envs.vector:TerminalVectorEnv"
    assert spec.nondeterministic


def test_typed():
    assert importlib.resources.files(obsspec_gym).joinpath("py.typed").is_file()
