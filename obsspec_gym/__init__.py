"""Observation speculation for tool-using agents: the policy thinks while the tool runs.

Importing this package registers ``obsspec_gym/Terminal-v0`` with Gymnasium and loads nothing else: every public name
is imported from its module when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import gymnasium as _gymnasium

if TYPE_CHECKING:
    from obsspec_gym.agents.engine.base import Engine
    from obsspec_gym.agents.engine.server import ServerEngine
    from obsspec_gym.agents.engine.transformers import TransformersEngine
    from obsspec_gym.agents.fakes import ScriptedPolicy, ScriptedWorldModel
    from obsspec_gym.agents.history import History, Turn
    from obsspec_gym.agents.lm_policy import LMPolicy, load_policy
    from obsspec_gym.agents.policy import Policy
    from obsspec_gym.agents.world_model.base import WorldModel
    from obsspec_gym.agents.world_model.cascade import CascadeWorldModel
    from obsspec_gym.agents.world_model.lm import LMWorldModel
    from obsspec_gym.agents.world_model.loading import load_world_model
    from obsspec_gym.agents.world_model.memory import MemoryWorldModel
    from obsspec_gym.agents.world_model.tabular import TabularWorldModel
    from obsspec_gym.envs.latency import LatencyProfile
    from obsspec_gym.envs.observation import ObservationFormat
    from obsspec_gym.envs.sandbox import Sandbox, make_sandbox
    from obsspec_gym.envs.tasks import get_suite, suite_names
    from obsspec_gym.envs.tasks.task import Suite, Task
    from obsspec_gym.envs.terminal import TerminalEnv
    from obsspec_gym.envs.threads import ThreadVectorEnv
    from obsspec_gym.envs.vector import TerminalVectorEnv
    from obsspec_gym.errors import (
        ClosedError,
        EngineError,
        GenerationCancelled,
        InvalidArgumentError,
        MissingExtraError,
        ObsSpecError,
        SandboxError,
        SandboxUnavailableError,
    )
    from obsspec_gym.spaces import TerminalText
    from obsspec_gym.speculation.adaptive import AdaptiveSelector
    from obsspec_gym.speculation.collector import Collection, collect, collect_async
    from obsspec_gym.speculation.comparison import Comparison, compare
    from obsspec_gym.speculation.metrics import Measures, measure
    from obsspec_gym.speculation.selector import Budget, FixedSelector, Off, Selector
    from obsspec_gym.speculation.single import ObsSpecEnv
    from obsspec_gym.speculation.slot import Episode
    from obsspec_gym.speculation.speculator import Speculator
    from obsspec_gym.speculation.trajectory import Step, Trajectory
    from obsspec_gym.speculation.wrapper import ObsSpecVectorEnv
    from obsspec_gym.types import (
        Completion,
        EpisodeId,
        FinishReason,
        MalformedCall,
        Outcome,
        Prediction,
        Priority,
        Sampling,
        Transition,
    )

__all__ = [
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

__version__ = "0.1.0"

_MODULES = {
    "agents.engine.base": ("Engine",),
    "agents.engine.server": ("ServerEngine",),
    "agents.engine.transformers": ("TransformersEngine",),
    "agents.fakes": (
        "ScriptedPolicy",
        "ScriptedWorldModel",
    ),
    "agents.history": (
        "History",
        "Turn",
    ),
    "agents.lm_policy": (
        "LMPolicy",
        "load_policy",
    ),
    "agents.policy": ("Policy",),
    "agents.world_model.base": ("WorldModel",),
    "agents.world_model.cascade": ("CascadeWorldModel",),
    "agents.world_model.lm": ("LMWorldModel",),
    "agents.world_model.loading": ("load_world_model",),
    "agents.world_model.memory": ("MemoryWorldModel",),
    "agents.world_model.tabular": ("TabularWorldModel",),
    "envs.latency": ("LatencyProfile",),
    "envs.observation": ("ObservationFormat",),
    "envs.sandbox": (
        "Sandbox",
        "make_sandbox",
    ),
    "envs.tasks": (
        "get_suite",
        "suite_names",
    ),
    "envs.tasks.task": (
        "Suite",
        "Task",
    ),
    "envs.terminal": ("TerminalEnv",),
    "envs.threads": ("ThreadVectorEnv",),
    "envs.vector": ("TerminalVectorEnv",),
    "errors": (
        "ClosedError",
        "EngineError",
        "GenerationCancelled",
        "InvalidArgumentError",
        "MissingExtraError",
        "ObsSpecError",
        "SandboxError",
        "SandboxUnavailableError",
    ),
    "spaces": ("TerminalText",),
    "speculation.adaptive": ("AdaptiveSelector",),
    "speculation.collector": (
        "Collection",
        "collect",
        "collect_async",
    ),
    "speculation.comparison": (
        "Comparison",
        "compare",
    ),
    "speculation.metrics": (
        "Measures",
        "measure",
    ),
    "speculation.selector": (
        "Budget",
        "FixedSelector",
        "Off",
        "Selector",
    ),
    "speculation.single": ("ObsSpecEnv",),
    "speculation.slot": ("Episode",),
    "speculation.speculator": ("Speculator",),
    "speculation.trajectory": (
        "Step",
        "Trajectory",
    ),
    "speculation.wrapper": ("ObsSpecVectorEnv",),
    "types": (
        "Completion",
        "EpisodeId",
        "FinishReason",
        "MalformedCall",
        "Outcome",
        "Prediction",
        "Priority",
        "Sampling",
        "Transition",
    ),
}
_HOME = {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value  # found directly from now on
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


_gymnasium.register(
    id="obsspec_gym/Terminal-v0",
    entry_point="obsspec_gym.envs.terminal:TerminalEnv",
    vector_entry_point="obsspec_gym.envs.vector:TerminalVectorEnv",
    nondeterministic=True,  # commands take time, and may print it
)
