"""What runs in the engine's process; see ``process``."""

from __future__ import annotations

import os
import select
import time
from multiprocessing.connection import Connection

import torch

from obsspec_gym.agents.engine.embedded.core import Core
from obsspec_gym.agents.engine.embedded.drivers import guarded_step
from obsspec_gym.agents.engine.embedded.process import Pause, Paused, Ready, Report, Resume, map_memory
from obsspec_gym.agents.engine.embedded.weights import ModelWeights

_STEPS_A_REPORT = 4
_CHECK_SECONDS = 1.0


def main(messages: int, memory: int) -> None:
    """Runs a core until the other side is gone."""
    parent = os.getppid()
    with Connection(messages) as connection:
        try:
            setup = connection.recv()
            os.nice(setup.terms.niceness)
            torch.set_num_threads(setup.terms.threads)
            weights = ModelWeights(setup.shape, map_memory(memory, setup.dtype))
            connection.send(Ready())
            _serve(connection, Core(weights, setup.limits), parent, setup.terms.step_seconds)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return  # the other side is gone


def _serve(connection: Connection, core: Core, parent: int, step_seconds: float) -> None:
    steps, checked = 0, time.monotonic()
    while True:
        while _readable(connection, 0.0 if core.busy else _CHECK_SECONDS):
            _take(connection, core)
        if time.monotonic() - checked > _CHECK_SECONDS:
            checked = time.monotonic()
            if os.getppid() != parent:  # its end of the pipe may live on in a forked child
                return
        if not core.busy:
            continue
        steps += 1
        began = time.monotonic()
        finished = guarded_step(core)
        if step_seconds:
            time.sleep(max(0.0, began + step_seconds - time.monotonic()))
        core.took(time.monotonic() - began)
        if finished or not core.busy or steps % _STEPS_A_REPORT == 0:
            connection.send(Report(finished, core.load(), core.progress()))


def _take(connection: Connection, core: Core) -> None:
    message = connection.recv()
    if isinstance(message, Pause):
        connection.send(Paused())
        message = connection.recv()
    if isinstance(message, Resume):
        connection.send(Report(core.update(message.version), core.load()))
        return
    core.apply(message)
    if not core.busy:
        connection.send(Report([], core.load()))


def _readable(connection: Connection, timeout: float) -> bool:
    return bool(select.select([connection.fileno()], [], [], timeout)[0])
