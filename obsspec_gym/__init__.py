"""Observation speculation for tool-using agents: the policy thinks while the tool runs.

Importing this package registers ``obsspec_gym/Terminal-v0`` with Gymnasium and loads nothing else: every public name
is imported from its module when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import gymnasium as _gymnasium

if TYPE_CHECKING:
    from obsspec_gym.agents.history import History, Turn
    from obsspec_gym.envs.latency import LatencyProfile
    from obsspec_gym.envs.observation import ObservationFormat
    from obsspec_gym.envs.sandbox import make_sandbox
    from obsspec_gym.envs.tasks import get_suite
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
    from obsspec_gym.types import (
        Completion,
        EpisodeId,
        MalformedCall,
        Outcome,
        Prediction,
        Priority,
        Sampling,
        Transition,
    )

__all__ = [
    "ClosedError",
    "Completion",
    "EngineError",
    "EpisodeId",
    "GenerationCancelled",
    "History",
    "InvalidArgumentError",
    "LatencyProfile",
    "MalformedCall",
    "MissingExtraError",
    "ObsSpecError",
    "ObservationFormat",
    "Outcome",
    "Prediction",
    "Priority",
    "Sampling",
    "SandboxError",
    "SandboxUnavailableError",
    "Suite",
    "Task",
    "TerminalEnv",
    "TerminalText",
    "TerminalVectorEnv",
    "ThreadVectorEnv",
    "Transition",
    "Turn",
    "__version__",
    "get_suite",
    "make_sandbox",
]

__version__ = "0.1.0"

_MODULES = {
    "agents.history": ("History", "Turn"),
    "envs.latency": ("LatencyProfile",),
    "envs.observation": ("ObservationFormat",),
    "envs.sandbox": ("make_sandbox",),
    "envs.tasks": ("get_suite",),
    "envs.tasks.task": ("Suite", "Task"),
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
    "types": (
        "Completion",
        "EpisodeId",
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
