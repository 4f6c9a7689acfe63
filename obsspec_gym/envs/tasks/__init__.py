"""Tasks and where they come from: what a task is, and generated suites by name."""

from obsspec_gym.envs.tasks.generated import BASICS, EVALUATION, FAMILIES, Demonstrator, GeneratedSuite, Split
from obsspec_gym.envs.tasks.suites import get_suite, suite_names
from obsspec_gym.envs.tasks.task import Expert, Suite, Task

__all__ = [
    "BASICS",
    "EVALUATION",
    "FAMILIES",
    "Demonstrator",
    "Expert",
    "GeneratedSuite",
    "Split",
    "Suite",
    "Task",
    "get_suite",
    "suite_names",
]
