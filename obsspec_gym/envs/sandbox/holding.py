"""One container, from before it is made until nothing of it is left."""

from __future__ import annotations

import contextlib
import math
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from obsspec_gym.envs.sandbox.containers import ContainerSupervisor
from obsspec_gym.envs.sandbox.daemon import Daemon, not_found, refused, telling
from obsspec_gym.envs.sandbox.docker_disk import disk_options
from obsspec_gym.envs.sandbox.docker_image import choose_image
from obsspec_gym.envs.sandbox.framed_pipes import FramedPipes
from obsspec_gym.envs.sandbox.layers import ENVIRONMENT, HOSTNAME, Resources
from obsspec_gym.envs.sandbox.patience import Patience
from obsspec_gym.envs.sandbox.reaper import Owner, reap_once
from obsspec_gym.errors import InvalidArgumentError, SandboxError, SandboxUnavailableError

_AGENT_UID = 1000
_MIB = 2**20
_PERIOD = 100_000  # microseconds; a quota may be for more CPUs than the daemon has, a number of CPUs may not
_START_SECONDS = 24.0
_ANSWER_SECONDS = 60.0
_REMOVE_SECONDS = 10.0  # for all of it; where nobody answers, the two below
_ALIVE_SECONDS = 0.5
_LOST_SECONDS = 0.05
_POLL_SECONDS = 0.02
# The supervisor's, and root's when a machine is made; the agent has none, whoever it is. KILL: to end the agent's
# processes. The next: to copy an agent's files, whatever permissions they have. The last, only where a machine is made:
# to act as other users there and (SETPCAP) to give all of these up for an agent that is root.
_CAPABILITIES = ("KILL", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID")
_MAKING = ("SETGID", "SETUID", "SETPCAP")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a container may use; see :class:`obsspec_gym.envs.sandbox.docker.DockerSandbox`.

    Raises:
        InvalidArgumentError: If one is not at least 1 (``cpus``: positive).
    """

    disk_mib: int
    file_mib: int
    memory_mib: int
    processes: int
    cpus: float | None

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if name != "cpus" and value < 1:
                raise InvalidArgumentError(f"{name} must be at least 1, got {value}")
        if self.cpus is not None and not (self.cpus > 0 and math.isfinite(self.cpus)):
            raise InvalidArgumentError(f"cpus must be a positive number or None, got {self.cpus}")


@dataclass
class Container(Resources):
    """A container and our connections to it.

    Attributes:
        daemon: Where it is.
        name: Its name, chosen by us, so that it is known before it exists.
        streams: The supervisor's connection.
        first: The supervisor.
        started: The connections of processes in it.
        made: Whether the daemon has said that it exists.
        patience: What bounds each wait for it.
    """

    daemon: Daemon | None = None
    name: str = ""
    streams: FramedPipes | None = None
    first: ContainerSupervisor | None = None
    started: list[FramedPipes] = field(default_factory=list)
    made: bool = False
    patience: Patience = field(default_factory=Patience)

    def start(self, image: str | None, limits: Limits, home: str | None) -> None:
        """Makes and starts it, and waits until its supervisor answers.

        Args:
            image: The image; None for the usual one.
            limits: What it may use.
            home: The agent's home, on a file system that is read-only otherwise; None for the image's own file system.

        Raises:
            SandboxUnavailableError: If there is no daemon or no such image, or the daemon cannot run it.
        """
        daemon = self.daemon = Daemon()
        reap_once(daemon)
        image = choose_image(daemon, image)
        self.name = f"obsspec-{secrets.token_hex(8)}"
        self.patience.begin(_START_SECONDS)
        self._make(image, _host(limits, home) | ({} if home else disk_options(daemon, image, limits.disk_mib)))
        self.made = True
        where = f"/containers/{self.name}/attach?stream=1&stdin=1&stdout=1&stderr=1"
        with self._answering("reach the container"):
            self.streams = FramedPipes(daemon.hijack(where, timeout=daemon.api.timeout))
        advice = f"the image {image} needs bash and env; see the daemon's log for other causes"
        with self._answering("start a container", advice):
            daemon.api.start(self.name)
        self.first = ContainerSupervisor(self.streams, self.patience)
        self.first.ask(":", _START_SECONDS)
        self.patience.end()

    def require(self) -> ContainerSupervisor:
        """The supervisor.

        Raises:
            SandboxError: If there is none.
        """
        if self.first is None:
            raise SandboxError("the sandbox's supervisor ended")
        return self.first

    def execute(self, user: str, command: list[str]) -> tuple[FramedPipes, str]:
        """Starts a process in it; returns its streams and the name it has for the daemon."""
        self.started = [pipes for pipes in self.started if not pipes.closed]
        with self._answering("start a process in the container") as daemon:
            made = daemon.api.exec_create(self.name, command, stdin=True, user=user, workdir="/")
            where, how = f"/exec/{made['Id']}/start", {"Detach": False, "Tty": False}
            self.started.append(FramedPipes(daemon.hijack(where, how, timeout=daemon.api.timeout)))
        return self.started[-1], str(made["Id"])

    def status(self, process: str) -> int | None:
        """The exit status of a process that :meth:`execute` started; None while it runs."""
        with self._answering("say how a process ended") as daemon:
            said = daemon.api.exec_inspect(process)
        return None if said["Running"] or said["ExitCode"] is None else int(said["ExitCode"])

    def kill(self) -> None:
        """Hangs up, at which the container ends; closes nothing: callable from any thread."""
        for streams in (self.streams, *self.started):
            if streams is not None:
                streams.hang_up()

    def release(self) -> None:
        """Removes it and closes every connection. Idempotent."""
        if self.daemon is not None and self.name:
            self._remove(self.daemon)
            self.name = ""
        self.kill()
        if self.session is not None:
            self.session.close()
            self.session = None
        if self.streams is not None:
            self.streams.close()
            self.streams = self.first = None
        while self.started:
            self.started.pop().close()
        if self.daemon is not None:
            self.daemon.close()
            self.daemon = None
        super().release()

    @contextlib.contextmanager
    def _answering(self, what: str, unavailable: str = "") -> Iterator[Daemon]:
        """The daemon, for questions that are answered in time or not at all: then nothing more is asked of it."""
        assert self.daemon is not None
        self.daemon.api.timeout = self.patience.seconds(_ANSWER_SECONDS)
        try:
            with telling(what, unavailable):
                yield self.daemon
        except SandboxError as error:
            if self.first is not None and not refused(error.__cause__):
                self.first.lost = True
            raise

    def _make(self, image: str, host: Mapping[str, Any]) -> None:
        environment = {"PATH": ENVIRONMENT["PATH"], "LC_ALL": ENVIRONMENT["LC_ALL"], "HOME": "/"}
        words = [f"{name}={value}" for name, value in environment.items()]
        try:
            with self._answering("make a container") as daemon:
                daemon.api.create_container(
                    image,
                    entrypoint=["env", "-i", *words, "bash", "--noprofile", "--norc"],
                    command=[],
                    name=self.name,
                    hostname=HOSTNAME,
                    user="0:0",
                    working_dir="/",
                    stdin_open=True,
                    labels=Owner.current().labels(),
                    host_config=daemon.api.create_host_config(**host),
                )
        except SandboxError as error:
            if refused(error.__cause__):
                self.name = ""  # there is nothing to remove
            if not_found(error.__cause__):
                raise SandboxUnavailableError(
                    f"Docker has no image {image}, and none is ever pulled: docker pull {image}, or leave the image "
                    "out to have the one that obsspec image build makes."
                ) from error
            raise

    def _remove(self, daemon: Daemon) -> None:
        """Removes the container, and waits until it is gone; a daemon that does not answer is not waited for.

        It may not be there yet, where an exception came while it was being made; or be removed already, for it ended.
        Where nobody answers, it ends and is removed when the daemon goes on, for we have hung up.
        """
        lost = self.first is not None and self.first.lost
        deadline = time.monotonic() + self.patience.seconds(_REMOVE_SECONDS if self.made else 1.0)
        while not lost and daemon.answers(self.patience.seconds(_ALIVE_SECONDS)):
            # In short: it may hang from now on.
            if self._removed(daemon, self.patience.seconds(2 * _ALIVE_SECONDS)) or time.monotonic() > deadline:
                return
            time.sleep(_POLL_SECONDS)
        self._removed(daemon, _LOST_SECONDS)

    def _removed(self, daemon: Daemon, seconds: float) -> bool:
        """Asks for it to be removed; whether it is known to be gone."""
        daemon.api.timeout = seconds
        try:
            with telling("remove the container"):
                daemon.api.remove_container(self.name, v=True, force=True)
        except SandboxError as error:
            return self.made and not_found(error.__cause__)
        return True


def _host(limits: Limits, home: str | None) -> dict[str, Any]:
    """What the container is given of its host."""
    size = f"size={limits.disk_mib}m,nr_inodes={limits.disk_mib * 1024}"
    files = {"/verifier": "rw,exec,nosuid,nodev,size=256m,mode=700"}
    if home is not None:
        files["/tmp"] = f"rw,exec,nosuid,nodev,mode=1777,{size}"
        files[home] = f"rw,exec,nosuid,nodev,mode=755,uid={_AGENT_UID},gid={_AGENT_UID},{size}"
    options: dict[str, Any] = {
        "network_mode": "none",
        "read_only": home is not None,
        "tmpfs": files,
        "shm_size": f"{limits.disk_mib}m",
        "mem_limit": limits.memory_mib * _MIB,
        "memswap_limit": limits.memory_mib * _MIB,
        "pids_limit": limits.processes,
        "cap_drop": ["ALL"],
        "cap_add": list(_CAPABILITIES if home is not None else (*_CAPABILITIES, *_MAKING)),
        "security_opt": ["no-new-privileges"],
        "log_config": {"Type": "none"},
        "auto_remove": True,
    }
    if limits.cpus is not None:
        options["cpu_period"], options["cpu_quota"] = _PERIOD, max(1_000, int(limits.cpus * _PERIOD))
    return options
