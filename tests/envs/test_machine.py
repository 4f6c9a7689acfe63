"""Machines of tasks: who may make them, with which limits, and what would play a task on another one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from terminal_fakes import FakeSandbox

from obsspec_gym.envs import machine
from obsspec_gym.envs.machine import Machines
from obsspec_gym.envs.sandbox import make_sandbox
from obsspec_gym.envs.sandbox.pool import SandboxPool
from obsspec_gym.envs.tasks.task import Expert, Image, Task
from obsspec_gym.envs.terminal import TerminalEnv
from obsspec_gym.envs.vector import TerminalVectorEnv
from obsspec_gym.errors import InvalidArgumentError, SandboxUnavailableError

PLAIN = Task("plain", "Do nothing.", verifier="true")
IMAGED = Task("imaged", "Do nothing.", verifier="true", image=Image())


class Mixed:
    """A plain task, then one with a machine of its own."""

    name = "mixed"

    def __len__(self) -> int:
        return 2

    def task(self, index: int) -> Task:
        return (PLAIN, IMAGED)[index]

    def expert(self, task: Task) -> Expert:
        raise InvalidArgumentError("no expert here")


@pytest.fixture(params=["class", "partial", "pool"])
def make(request: pytest.FixtureRequest) -> Callable[[], Any]:
    """Callables that know nothing of tasks; none of them may be called here."""
    FakeSandbox.clear()
    if request.param == "class":
        return FakeSandbox
    return partial(make_sandbox, "bubblewrap") if request.param == "partial" else SandboxPool(FakeSandbox).acquire


def test_a_callable_is_refused_for_a_task_with_a_machine_before_anything_happens(make: Callable[[], Any]) -> None:
    for kind in (TerminalEnv, TerminalVectorEnv):
        with pytest.raises(InvalidArgumentError, match=r"task imaged needs a machine of its own") as refused:
            kind(suite=Mixed(), task=IMAGED, sandbox=make)
        assert "\n" not in str(refused.value)
    assert FakeSandbox.opened == 0


def test_an_episode_under_way_goes_on_where_the_next_task_is_refused() -> None:
    FakeSandbox.clear()
    env = TerminalEnv(Mixed(), sandbox=FakeSandbox)
    env.reset(options={"task": 0})
    with pytest.raises(InvalidArgumentError, match="needs a machine of its own"):
        env.reset(options={"task": 1})
    assert env.step("echo on")[0] == "on\n[exit 0] ~"
    env.close()
    assert (FakeSandbox.opened, FakeSandbox.closed) == (1, 1)


def test_a_drawn_task_is_refused_as_a_given_one_is() -> None:
    env = TerminalEnv(Mixed(), sandbox=FakeSandbox, start_index=1)
    with pytest.raises(InvalidArgumentError, match="needs a machine of its own"):
        env.reset(seed=0)
    env.close()


@pytest.mark.parametrize("name", ["root", "user", "workdir", "env"])
def test_whose_a_machine_is_the_task_says(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{name} is for tasks to say"):
        Machines("docker", **{name: "/x"})


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [("vm", {}, "unknown kind"), ("docker", {"disk_mib": 0}, "disk_mib"), ("local", {"cpus": 1}, "does not take")],
)
def test_options_that_are_none_are_refused_at_once(kind: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        Machines(kind, **options)


def test_machines_are_sandboxes_with_options_for_tasks_without_one() -> None:
    assert make_options(Machines("bubblewrap", disk_mib=7), PLAIN) == ("bubblewrap", {"disk_mib": 7})
    with pytest.raises(SandboxUnavailableError, match="which a local sandbox is not"):
        Machines("local")(IMAGED)
    with pytest.raises(SandboxUnavailableError, match="which a local sandbox is not"):
        Machines("local").check(IMAGED)


def make_options(machines: Machines, task: Task) -> tuple[str, dict[str, Any]]:
    """The kind and the options that a task's sandbox is made with."""
    made: list[tuple[str, dict[str, Any]]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "make_sandbox", lambda kind, **options: made.append((kind, options)))
        patch.setattr(machine, "image_tree", lambda: "/tree")
        machines(task)
    return made[0]


MIB = st.none() | st.integers(1, 20_000)
CPUS = st.none() | st.floats(0.1, 64)


@given(CPUS, MIB, MIB, CPUS, MIB, MIB)
def test_a_container_has_what_its_task_asks_for_and_no_more_than_is_allowed(
    cpus: float | None,
    memory: int | None,
    disk: int | None,
    most_cpus: float | None,
    most_memory: int | None,
    most_disk: int | None,
) -> None:
    given_ = {"cpus": most_cpus, "memory_mib": most_memory, "disk_mib": most_disk}
    allowed = {name: value for name, value in given_.items() if value is not None}
    image = Image(user="me", workdir="/w", env={"A": "b"}, cpus=cpus, memory_mib=memory, disk_mib=disk)
    _, options = make_options(Machines("docker", **allowed), Task("t", "", image=image))
    assert (options["user"], options["workdir"], options["env"]) == ("me", "/w", {"A": "b"})
    defaults = {"cpus": float("inf"), "memory_mib": 2_048, "disk_mib": 2_048}
    for name, wanted in (("cpus", cpus), ("memory_mib", memory), ("disk_mib", disk)):
        bound = allowed.get(name, defaults[name])
        expected = min(bound, wanted) if wanted is not None else bound
        assert options[name] == (None if expected == float("inf") else expected)


@pytest.mark.parametrize("grouped", [True, False])
def test_in_bubblewrap_memory_and_disk_are_bounded_together_or_else_each_process(
    grouped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "control_groups_available", lambda: None if grouped else "no groups here")
    task = Task("t", "", image=Image(memory_mib=512, disk_mib=100))
    _, options = make_options(Machines("bubblewrap"), task)
    assert options["disk_mib"] == 100
    assert (options.get("total_mib"), options.get("memory_mib")) == ((612, None) if grouped else (None, 512))
    _, bounded = make_options(Machines("bubblewrap", total_mib=300, memory_mib=200), task)
    assert (bounded["total_mib"], bounded["memory_mib"]) == (300, 200)
    _, free = make_options(Machines("bubblewrap"), IMAGED)
    assert (free.get("total_mib"), free.get("memory_mib"), free["disk_mib"]) == (None, None, 2_048)
