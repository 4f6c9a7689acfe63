"""How an engine runs, and the driver that makes it so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch

from obsspec_gym.agents.engine.embedded.core import Core
from obsspec_gym.agents.engine.embedded.drivers import Driver, InlineDriver, ThreadDriver
from obsspec_gym.agents.engine.embedded.inbox import Inbox
from obsspec_gym.agents.engine.embedded.process import ProcessDriver, Terms
from obsspec_gym.agents.engine.embedded.scheduler import Limits
from obsspec_gym.agents.engine.embedded.shape import ModelShape
from obsspec_gym.agents.engine.embedded.weights import ModelWeights
from obsspec_gym.errors import InvalidArgumentError

DriverName = Literal["inline", "thread", "process"]
DtypeName = Literal["float32", "float64"]

_DTYPES = {"float32": torch.float32, "float64": torch.float64}
_DEFAULT_KV_BYTES = 512 * 2**20


@dataclass(frozen=True, slots=True)
class Settings:
    """How an engine runs; see :class:`~obsspec_gym.agents.engine.transformers.TransformersEngine`.

    Raises:
        InvalidArgumentError: If one is out of range, or does not go with another.
    """

    dtype: DtypeName
    driver: DriverName
    max_batch_tokens: int
    max_running: int
    capacity_tokens: int | None
    device: str
    step_seconds: float
    threads: int
    niceness: int

    def __post_init__(self) -> None:
        _check(self.dtype in get_args(DtypeName), f"dtype must be one of float32, float64, got {self.dtype!r}")
        drivers = ", ".join(get_args(DriverName))
        _check(self.driver in get_args(DriverName), f"driver must be one of {drivers}, got {self.driver!r}")
        for name, value in (
            ("max_batch_tokens", self.max_batch_tokens),
            ("max_running", self.max_running),
            ("threads", self.threads),
        ):
            _check(value >= 1, f"{name} must be at least 1, got {value}")
        _check(0 <= self.niceness <= 19, f"niceness must be in 0..19, got {self.niceness}")
        _check(
            not self.step_seconds or self.driver != "thread",
            f"step_seconds is for the inline and process drivers, got driver={self.driver!r}",
        )
        _check(
            self.driver != "process" or self.device == "cpu",
            f"the process driver shares memory and runs on the CPU, got device={self.device!r}",
        )

    def limits(self, shape: ModelShape) -> Limits:
        """What a core may use."""
        capacity = self.capacity_tokens
        if capacity is None:
            token_bytes = shape.layers * shape.kv_width * _DTYPES[self.dtype].itemsize
            capacity = max(_DEFAULT_KV_BYTES // token_bytes, 4 * shape.context)
        return Limits(batch_tokens=self.max_batch_tokens, capacity_tokens=capacity, running=self.max_running)

    def make_driver(self, shape: ModelShape, limits: Limits, inbox: Inbox) -> tuple[Driver, ModelWeights]:
        """The driver, not started, and where to load the weights that it runs."""
        dtype = _DTYPES[self.dtype]
        if self.driver == "process":
            terms = Terms(self.threads, self.niceness, self.step_seconds)
            process = ProcessDriver(shape, dtype, limits, inbox, terms)
            return process, process.weights
        weights = ModelWeights.allocate(shape, dtype, torch.device(self.device))
        core = Core(weights, limits)
        if self.driver == "inline":
            return InlineDriver(core, inbox, self.step_seconds), weights
        return ThreadDriver(core, inbox), weights


def _check(condition: bool, sentence: str) -> None:
    if not condition:
        raise InvalidArgumentError(sentence)
