"""The families of the suite ``terminal`` that came after the four of ``basics``."""

from obsspec_gym.envs.tasks.families.access_logs import AccessLogs
from obsspec_gym.envs.tasks.families.archives import Archives
from obsspec_gym.envs.tasks.families.csv_cleaning import CsvCleaning
from obsspec_gym.envs.tasks.families.disk_usage import DiskUsage
from obsspec_gym.envs.tasks.families.git_history import GitHistory
from obsspec_gym.envs.tasks.families.packaging import Packaging
from obsspec_gym.envs.tasks.families.permissions import Permissions
from obsspec_gym.envs.tasks.families.renaming import Renaming
from obsspec_gym.envs.tasks.families.schedule import Schedule
from obsspec_gym.envs.tasks.families.settings import Settings
from obsspec_gym.envs.tasks.families.start_order import StartOrder
from obsspec_gym.envs.tasks.families.substitution import Substitution

__all__ = [
    "AccessLogs",
    "Archives",
    "CsvCleaning",
    "DiskUsage",
    "GitHistory",
    "Packaging",
    "Permissions",
    "Renaming",
    "Schedule",
    "Settings",
    "StartOrder",
    "Substitution",
]
