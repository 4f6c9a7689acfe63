"""What can go wrong, and what then happens.

::

    ObsSpecError
    ├── MissingExtraError      an optional dependency is not installed; names the extra (also an ImportError)
    ├── InvalidArgumentError   a bad argument, raised before anything was sent (also a ValueError)
    ├── ClosedError            used after close() (also gymnasium's ClosedEnvironmentError where one expects it)
    ├── SandboxError           a sandbox broke: the environment turns it into a truncated episode
    │   └── SandboxUnavailableError   this machine cannot provide it; says what can be done
    ├── EngineError            an engine could not serve a request
    └── GenerationCancelled    somebody awaited a generation that was cancelled

A failing *command* is an observation. A broken *sandbox* is a truncated episode with ``info["reason"]``. A bad
*argument* is an exception before anything was sent. A *world model* that raises, hangs or lies costs a bounded time
and is counted; it never changes a rollout. Nothing is lost silently.
"""

from __future__ import annotations

from gymnasium.error import ClosedEnvironmentError


class ObsSpecError(Exception):
    """Base of every error this package raises on purpose."""


class MissingExtraError(ObsSpecError, ImportError):
    """An optional dependency is missing.

    Args:
        module: The module that could not be imported.
        extra: The extra of this package that brings it.
    """

    def __init__(self, module: str, extra: str) -> None:
        super().__init__(f"{module} is needed here and is not installed: pip install 'obsspec_gym[{extra}]'")
        self.module = module
        self.extra = extra


class InvalidArgumentError(ObsSpecError, ValueError):
    """An argument is not what was expected; nothing has been sent or started."""


class ClosedError(ObsSpecError, ClosedEnvironmentError):
    """The object was used after it was closed."""


class SandboxError(ObsSpecError):
    """A sandbox broke while it was in use."""


class SandboxUnavailableError(SandboxError):
    """This machine cannot provide the sandbox that was asked for."""


class EngineError(ObsSpecError):
    """An engine could not serve a request."""


class GenerationCancelled(ObsSpecError):
    """The generation was cancelled before it was finished."""
