"""What others on the machine lose to an engine that computes beside them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import tiny_models  # noqa: E402

from obsspec_gym.agents.engine.embedded import core as core_module  # noqa: E402
from obsspec_gym.agents.engine.embedded.contention import Contention  # noqa: E402
from obsspec_gym.agents.engine.embedded.core import Core  # noqa: E402
from obsspec_gym.agents.engine.embedded.requests import Finished, Submit  # noqa: E402
from obsspec_gym.agents.engine.embedded.scheduler import Limits  # noqa: E402
from obsspec_gym.agents.engine.embedded.shape import ModelShape  # noqa: E402
from obsspec_gym.agents.engine.embedded.weights import ModelWeights  # noqa: E402
from obsspec_gym.types import Priority, Sampling  # noqa: E402


def told(steps: int = 64, **seconds: float) -> float:
    contention = Contention()
    for _ in range(steps):
        contention.add(**seconds)
    return contention.share


@given(
    whole=st.floats(1e-4, 1.0), computing=st.floats(0.0, 1.0), processor=st.floats(0.0, 1.0), steps=st.integers(0, 300)
)
def test_it_is_a_share(whole: float, computing: float, processor: float, steps: int) -> None:
    assert 0.0 <= told(steps, whole=max(whole, computing), computing=computing, processor=processor) <= 1.0


def test_who_waits_takes_what_it_computes_and_who_does_not_takes_nothing() -> None:
    assert told(whole=0.03, computing=0.01, processor=0.01) == 0.0
    shared = told(whole=0.01, computing=0.01, processor=0.005)
    assert shared == pytest.approx(0.5)
    assert told(whole=0.02, computing=0.01, processor=0.005) == pytest.approx(shared / 2)  # it sleeps half of the time
    assert told(whole=0.01, computing=0.01, processor=0.008) < shared


@pytest.mark.parametrize(("waiting", "expected"), [(1, 0.0), (2, 0.25)])
def test_a_core_learns_it_from_its_steps(monkeypatch: pytest.MonkeyPatch, waiting: int, expected: float) -> None:
    """Steps that compute for 10 ms, have a processor for one part in so many of their time, and sleep as long."""
    model = tiny_models.qwen3()
    weights = ModelWeights.allocate(ModelShape.of(model.config), torch.float32, torch.device("cpu"))
    weights.load(dict(model.named_parameters()))
    weights.load_rope(model)
    core, clock = Core(weights, Limits()), Clock(waiting)
    monkeypatch.setattr(core_module, "time", clock)
    monkeypatch.setattr(core, "step", clock.computes(core.step))
    core.apply(Submit(0, (1, 2, 3), Sampling(max_tokens=40), 0, Priority.COMMITTED))
    while core.busy:
        core.timed_step(least=waiting * 0.02)
    assert core.load().contended == pytest.approx(expected)


class Clock:
    """Of a machine on which a processor is had for one part in so many of the time."""

    def __init__(self, parts: int) -> None:
        self.parts = parts
        self.now = self.had = 0.0

    def perf_counter(self) -> float:
        return self.now

    def thread_time(self) -> float:
        return self.had

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def computes(self, step: Callable[[], list[Finished]]) -> Callable[[], list[Finished]]:
        def stepped() -> list[Finished]:
            self.had += 0.01
            self.now += 0.01 * self.parts
            return step()

        return stepped
