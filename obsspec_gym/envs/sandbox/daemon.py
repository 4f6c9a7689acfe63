"""Reaching a Docker daemon: the SDK for what is asked and answered, a plain connection for what streams.

Which daemon is told by ``DOCKER_HOST``, as to Docker's own programs: ``unix://PATH`` (the default,
``/var/run/docker.sock``) or ``tcp://HOST:PORT``. Podman's socket serves as well:
``DOCKER_HOST=unix://$XDG_RUNTIME_DIR/podman/podman.sock`` after ``systemctl --user start podman.socket``.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from obsspec_gym.errors import MissingExtraError, SandboxError, SandboxUnavailableError

DEFAULT_HOST = "unix:///var/run/docker.sock"

_SECONDS = 60.0  # for one answer; a busy machine is slow, not broken
_HELLO_SECONDS = 4.0  # for the easiest of all
_OLDEST = (1, 41)  # of Docker 20.10
_versions: dict[str, str] = {}
_lock = threading.Lock()


def docker_host() -> str:
    """The address of the daemon."""
    return os.environ.get("DOCKER_HOST") or DEFAULT_HOST


def sdk() -> ModuleType:
    """The Docker SDK.

    Raises:
        MissingExtraError: If it is not installed.
    """
    try:
        import docker
    except ImportError:
        raise MissingExtraError("docker", "docker") from None
    module: ModuleType = docker
    return module


class Daemon:
    """A Docker daemon, as one sandbox talks to it. To be closed; one thread at a time.

    Attributes:
        api: The SDK's client.

    Raises:
        MissingExtraError: If the SDK is not installed.
        SandboxUnavailableError: If no daemon answers; says what can be done.
    """

    def __init__(self) -> None:
        docker = sdk()
        self._host = docker_host()
        self._address = _address(self._host)
        try:
            # First ourselves: the SDK forgets a socket where nobody listens.
            _connect(self._address, _HELLO_SECONDS).close()
            with _lock:
                version = _versions.get(self._host)
            # Asked for once; an answer is asked of the daemon each time, though. Nobody else waits for it.
            self.api: Any = docker.APIClient(self._host, version or "auto", timeout=_HELLO_SECONDS)
            # The SDK would keep a connection open for each address that was asked: for every process, one.
            self.api.headers["Connection"] = "close"
            with _lock:
                _versions[self._host] = self.api.api_version
            if version:
                self.api.ping()
        except _failures() as error:
            self._forget()
            raise SandboxUnavailableError(
                f"no Docker daemon answers at {self._host} ({first_line(error)}): start one (systemctl start docker, "
                "or dockerd as root), or say in DOCKER_HOST where one is, such as Podman's socket."
            ) from error
        if tuple(map(int, self.api.api_version.split("."))) < _OLDEST:
            self._forget()
            raise SandboxUnavailableError(
                f"the Docker daemon at {self._host} is too old (API {self.api.api_version}): 20.10 or newer is needed."
            )
        self.api.timeout = _SECONDS

    def answers(self, seconds: float) -> bool:
        """Whether it answers the easiest question in time; nothing else is told by it."""
        before, self.api.timeout = self.api.timeout, seconds
        try:
            with telling("answer"):
                return bool(self.api.ping())
        except SandboxError:
            return False
        finally:
            self.api.timeout = before

    def hijack(self, path: str, body: Mapping[str, Any] | None = None, *, timeout: float = _SECONDS) -> socket.socket:
        """Posts a request whose connection then carries a process's streams; returns that connection.

        The process must not say anything before it is spoken to: what comes with the answer's headers is lost.

        Args:
            path: Where.
            body: Sent as JSON; only where the daemon reads one, for it would end up in the process's input otherwise.
            timeout: Seconds for each part of the answer.

        Raises:
            SandboxError: If the daemon refuses.
        """
        connection = http.client.HTTPConnection("docker")
        connection.sock = _connect(self._address, timeout)
        try:
            headers = {"Content-Type": "application/json", "Connection": "Upgrade", "Upgrade": "tcp"}
            connection.request("POST", f"/v{self.api.api_version}{path}", json.dumps(body) if body else None, headers)
            with connection.getresponse() as response:
                if response.status != http.HTTPStatus.SWITCHING_PROTOCOLS:
                    said = response.read(1000).decode("utf-8", "replace").strip()
                    raise SandboxError(f"Docker gave no connection ({response.status}): {said}")
            stream: socket.socket = connection.sock
            stream.setblocking(False)
        except BaseException as error:
            connection.close()
            if isinstance(error, http.client.HTTPException):
                raise SandboxError(f"Docker gave no connection: {error!r}") from error
            raise
        return stream

    def close(self) -> None:
        """Lets go of it. Idempotent."""
        self.api.close()

    def _forget(self) -> None:
        _versions.pop(self._host, None)
        with contextlib.suppress(AttributeError):  # the client may not have come about
            self.api.close()


@contextlib.contextmanager
def telling(what: str, unavailable: str = "") -> Iterator[None]:
    """Turns the SDK's errors into ours.

    Args:
        what: What is attempted: "Docker could not ...".
        unavailable: Advice, where the failure means that this machine cannot provide sandboxes.
    """
    try:
        yield
    except _failures() as error:
        if unavailable:
            raise SandboxUnavailableError(f"Docker could not {what} ({first_line(error)}): {unavailable}") from error
        raise SandboxError(f"Docker could not {what}: {first_line(error)}") from error


def not_found(error: BaseException | None) -> bool:
    """Whether the daemon said that there is no such thing (any more)."""
    return isinstance(error, sdk().errors.NotFound)


def refused(error: BaseException | None) -> bool:
    """Whether the daemon answered, and said no."""
    return isinstance(error, sdk().errors.APIError)


def first_line(error: BaseException) -> str:
    """What an error says, in one line."""
    text = str(error.explanation) if isinstance(error, sdk().errors.APIError) and error.explanation else str(error)
    return text.strip().partition("\n")[0] or type(error).__name__


def _failures() -> tuple[type[Exception], ...]:
    """What the SDK raises: its own errors, those of the libraries it stands on, and values it cannot read."""
    import requests
    import urllib3

    return (sdk().errors.DockerException, requests.RequestException, urllib3.exceptions.HTTPError, OSError)


def _address(host: str) -> str | tuple[str, int]:
    """A path or a host and port."""
    parts = urlsplit(host)
    if parts.scheme == "unix":
        return host.removeprefix("unix://")
    if parts.scheme in ("tcp", "http") and parts.hostname and not os.environ.get("DOCKER_TLS_VERIFY"):
        return parts.hostname, parts.port or 2375
    raise SandboxUnavailableError(
        f"DOCKER_HOST must be unix://PATH or tcp://HOST:PORT without TLS, got {host!r}: reach others by a forwarded "
        "socket (ssh -L /tmp/docker.sock:/var/run/docker.sock HOST)."
    )


def _connect(address: str | tuple[str, int], seconds: float) -> socket.socket:
    if isinstance(address, tuple):
        return socket.create_connection(address, seconds)
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(seconds)
        connection.connect(address)
    except BaseException:
        connection.close()
        raise
    return connection
