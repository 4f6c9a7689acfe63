"""What a bubblewrap sandbox may use."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass

from obsspec_gym.envs.sandbox.cgroups import ControlGroup, control_groups_available, usual_total_mib
from obsspec_gym.errors import InvalidArgumentError, SandboxUnavailableError

logger = logging.getLogger(__name__)

_FILE_SYSTEMS = 3  # home, /tmp and /dev/shm
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes in MiB; see :class:`obsspec_gym.envs.sandbox.bubblewrap.BubblewrapSandbox`.

    Raises:
        InvalidArgumentError: If one is not at least 1.
    """

    disk_mib: int
    file_mib: int
    memory_mib: int
    processes: int
    total_mib: int | None

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None and value < 1:
                raise InvalidArgumentError(f"{name} must be at least 1, got {value}")

    @property
    def disk(self) -> str:
        """Bytes of a file system, as bwrap and mount take them."""
        return str(self.disk_mib * _MIB)

    def script(self) -> str:
        """Bash that sets what holds for each process."""
        # The kernel shall end the agent's processes before the supervisor. Sizes in KiB.
        return (
            f"echo 500 >/proc/self/oom_score_adj; ulimit -c 0 -n 1024 -f {self.file_mib * 1024} "
            f"-v {self.memory_mib * 1024} -u {self.processes}"
        )

    def group(self) -> ControlGroup | None:
        """A control group for all processes together; None where none can be had and none was asked for.

        Raises:
            SandboxUnavailableError: If ``total_mib`` was given and no group can be made.
        """
        if self.total_mib is not None:
            return ControlGroup(self.total_mib, self.processes)
        if control_groups_available() is not None:
            return None
        usual = usual_total_mib(_FILE_SYSTEMS * self.disk_mib, self.memory_mib)
        try:
            return ControlGroup(usual, self.processes)
        except SandboxUnavailableError as error:
            logger.warning("the memory of a whole sandbox is not bounded: %s", error)
            return None
