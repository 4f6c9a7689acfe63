"""An engine in a process of its own, with the weights in shared memory.

The process is started afresh (never forked), imports nothing of the caller's program, and needs no file: weights and
messages go through two inherited descriptors. It ends when its caller closes it, or dies.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch

from obsspec_gym.agents.engine.base import EngineLoad
from obsspec_gym.agents.engine.embedded.drivers import Change
from obsspec_gym.agents.engine.embedded.inbox import Inbox
from obsspec_gym.agents.engine.embedded.requests import Command, Finished, Progress, Submit
from obsspec_gym.agents.engine.embedded.scheduler import Limits
from obsspec_gym.agents.engine.embedded.shape import ModelShape
from obsspec_gym.agents.engine.embedded.weights import ModelWeights
from obsspec_gym.errors import EngineError

_START = "import sys; sys.path[:] = {path!r}; from {module} import main; main({messages}, {memory})"
_WORKER = "obsspec_gym.agents.engine.embedded.worker"


@dataclass(frozen=True, slots=True)
class Terms:
    """On what terms the process runs.

    Attributes:
        threads: CPU threads.
        niceness: How far it stands back behind other processes for the CPU, 0 to 19.
        step_seconds: Seconds a step takes at least: the pace of a larger model.
    """

    threads: int = 1
    niceness: int = 0
    step_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Setup:
    """The first message: what to run."""

    shape: ModelShape
    dtype: torch.dtype
    limits: Limits
    terms: Terms


@dataclass(frozen=True, slots=True)
class Pause:
    """Stop before the next step, say so, and wait."""


@dataclass(frozen=True, slots=True)
class Resume:
    """The weights have changed; this is their version."""

    version: int


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker takes commands."""


@dataclass(frozen=True, slots=True)
class Paused:
    """The worker does not read the weights until it is resumed."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a step came to."""

    finished: list[Finished]
    load: EngineLoad
    progress: Progress | None = None


class ProcessDriver:
    """Steps run in a process of their own: Python code in this one does not slow them down.

    Args:
        shape: The model's.
        dtype: What to compute in.
        limits: What may be used.
        inbox: Where finished requests go.
        terms: On what terms the process runs.

    Attributes:
        weights: In memory that both processes see; load them before the first request.
    """

    def __init__(self, shape: ModelShape, dtype: torch.dtype, limits: Limits, inbox: Inbox, terms: Terms) -> None:
        self._setup = Setup(shape, dtype, limits, terms)
        self._inbox = inbox
        self._memory = shared_memory(ModelWeights.size(shape) * dtype.itemsize)
        self.weights = ModelWeights(shape, map_memory(self._memory, dtype))
        self._lock = threading.Lock()
        self._backlog: list[Command | Resume] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._reader: threading.Thread | None = None
        self._ready = False
        self._paused = threading.Event()
        self._failure: str | None = None
        self._closed = False
        self._load = EngineLoad(capacity_tokens=limits.capacity_tokens)

    def send(self, command: Command) -> None:
        with self._lock:
            if self._closed:
                return
            if self._process is None:
                self._start()
            if self._failure is None:
                self._post(command)
            elif isinstance(command, Submit):
                raise EngineError(self._failure)

    def load(self) -> EngineLoad:
        return self._load

    def update(self, change: Change, version: int) -> None:
        with self._lock:  # nothing is sent in between
            if self._ready and self._failure is None:
                self._paused.clear()
                self._post(Pause())
                self._paused.wait()
            try:
                change()
            finally:
                self._post(Resume(version))

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            os.close(self._memory)
        if self._process is None or self._connection is None or self._reader is None:
            return
        self._process.terminate()  # it owns nothing that outlives it
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._reader is not threading.current_thread():
            self._reader.join()  # the end of the process ends it

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            code = _START.format(path=sys.path, module=_WORKER, messages=theirs.fileno(), memory=self._memory)
            threads = str(self._setup.terms.threads)
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), self._memory),
                env={**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
                start_new_session=True,  # Ctrl-C in a terminal is for the caller, who then closes this
            )
        self._connection = Connection(ours.detach())
        self._connection.send(self._setup)
        self._reader = threading.Thread(
            target=self._read, args=(self._connection, self._process), name="obsspec-engine-reader", daemon=True
        )
        self._reader.start()

    def _post(self, message: Command | Pause | Resume) -> None:
        """Sends, or keeps it until the process is ready: a full pipe must not stop the caller."""
        if not self._ready or self._connection is None:
            if not isinstance(message, Pause):
                self._backlog.append(message)
            return
        with contextlib.suppress(OSError):  # it died: the reader says so
            self._connection.send(message)

    def _read(self, connection: Connection, process: subprocess.Popen[bytes]) -> None:
        with connection:
            while True:
                try:
                    message = connection.recv()
                except (EOFError, OSError):
                    break
                if isinstance(message, Report):
                    self._load = message.load
                    self._inbox.note(message.progress)
                    self._inbox.deliver(message.finished)
                elif isinstance(message, Paused):
                    self._paused.set()
                elif isinstance(message, Ready):
                    with self._lock:
                        self._ready = True
                        for command in self._backlog:
                            self._post(command)
                        self._backlog.clear()
            self._failure = f"the engine's process ended unexpectedly (exit status {process.wait()})"
            self._load = EngineLoad(capacity_tokens=self._setup.limits.capacity_tokens)
            self._paused.set()
            if not self._closed:
                self._inbox.fail_all(self._failure)


def shared_memory(size: int) -> int:
    """A descriptor of so many bytes of memory that has no name, and so is never left behind."""
    if sys.platform == "linux":
        memory = os.memfd_create("obsspec-engine-weights")
    else:
        with tempfile.TemporaryFile() as file:
            memory = os.dup(file.fileno())
    os.ftruncate(memory, size)
    return memory


def map_memory(memory: int, dtype: torch.dtype) -> torch.Tensor:
    """That memory as a tensor."""
    return torch.frombuffer(mmap.mmap(memory, 0), dtype=dtype)
