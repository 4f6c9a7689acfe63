"""Tasks and where they come from: what a task is, and suites by name."""

from obsspec_gym.envs.tasks.agentbench import AgentBenchSuite
from obsspec_gym.envs.tasks.generated import BASICS, EVALUATION, FAMILIES, Demonstrator, GeneratedSuite, Split
from obsspec_gym.envs.tasks.harbor import HarborSuite
from obsspec_gym.envs.tasks.suites import get_suite, suite_names
from obsspec_gym.envs.tasks.task import Expert, Image, Suite, Task

__all__ = [
    "BASICS",
    "EVALUATION",
    "FAMILIES",
    "AgentBenchSuite",
    "Demonstrator",
    "Expert",
    "GeneratedSuite",
    "HarborSuite",
    "Image",
    "Split",
    "Suite",
    "Task",
    "get_suite",
    "suite_names",
]
