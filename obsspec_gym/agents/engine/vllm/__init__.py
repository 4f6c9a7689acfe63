"""vLLM as an engine, in this program.

vLLM's scheduler and model run in a process of their own, as ``AsyncLLM`` has them: Python code in this one (many
environments, an optimiser) does not slow a step down. What runs here is a thread with an event loop of its own, to
which requests go and from which completions come; the loops that wait for them may come and go.
"""

from __future__ import annotations

from obsspec_gym.agents.engine.vllm.engine import VLLMEngine
from obsspec_gym.agents.engine.vllm.settings import DtypeName, OwnDrafts

__all__ = ["DtypeName", "OwnDrafts", "VLLMEngine"]
