"""Whoever listens to a command hears all of it, and changes nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from terminal_fakes import FakeSandbox, FakeSuite

from obsspec_gym.envs.listener import run_heard
from obsspec_gym.envs.observation import ObservationFormat
from obsspec_gym.envs.sandbox import Sandbox
from obsspec_gym.envs.terminal import TerminalEnv
from obsspec_gym.envs.vector import TerminalVectorEnv
from obsspec_gym.envs.worker import StepResult
from obsspec_gym.errors import InvalidArgumentError


@pytest.fixture
def terminals() -> Iterator[TerminalVectorEnv]:
    FakeSandbox.clear()
    envs = TerminalVectorEnv(2, suite=FakeSuite(), sandbox=FakeSandbox)
    envs.reset(seed=0)
    yield envs
    envs.close()


def told(result: StepResult) -> tuple[object, ...]:
    return result[:4], {key: value for key, value in result.info.items() if key not in ("tool_seconds", "turn")}


def test_output_is_heard_piece_by_piece(terminals: TerminalVectorEnv) -> None:
    heard: list[str] = []
    result = terminals.submit(0, "echo é!", on_output=heard.append).result()
    assert heard == ["é", "!", "\n"]
    assert told(terminals.submit(0, "echo é!").result()) == told(result)
    assert heard == ["é", "!", "\n"]  # the hook is for one command


def test_each_command_has_a_listener_of_its_own(terminals: TerminalVectorEnv) -> None:
    heard: dict[int, list[str]] = {0: [], 1: []}
    futures = [terminals.submit(i, f"echo {i}", on_output=heard[i].append) for i in heard]
    for future in futures:
        future.result()
    assert {i: "".join(pieces) for i, pieces in heard.items()} == {0: "0\n", 1: "1\n"}


def test_a_listener_that_raises_is_told_no_more_and_nothing_else_happens(
    terminals: TerminalVectorEnv, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[str] = []

    def raising(text: str) -> None:
        heard.append(text)
        raise ZeroDivisionError

    result = terminals.submit(0, "echo abc", on_output=raising).result()
    assert result.observation == "abc\n[exit 0] ~"
    assert not result.truncated
    assert heard == ["a"]
    assert "the listener of a command's output raised" in caplog.text
    assert terminals.submit(0, "echo on").result().observation == "on\n[exit 0] ~"


def test_what_is_not_run_says_nothing(terminals: TerminalVectorEnv) -> None:
    heard: list[str] = []
    with pytest.raises(InvalidArgumentError):
        terminals.submit(0, "a\0b", on_output=heard.append)
    assert terminals.submit(0, "submit 0", on_output=heard.append).result().terminated
    terminals.submit(0, "echo this step resets", on_output=heard.append).result()
    assert heard == []


def test_one_terminal_can_be_listened_to() -> None:
    FakeSandbox.clear()
    env = TerminalEnv(FakeSuite(), sandbox=FakeSandbox)
    env.reset()
    heard: list[str] = []
    with env.listening(heard.append):
        env.step("echo ab")
        with env.listening(None):
            env.step("echo not heard")
        env.step("echo c")
    env.step("echo not heard")
    assert "".join(heard) == "ab\nc\n"
    env.close()


def test_what_is_heard_may_become_the_observation(sandbox: Sandbox) -> None:
    """Pieces come before the command has ended, and are what ``may_become`` reads."""
    partial, seen, ticks = "", [], []

    def listen(text: str) -> None:
        nonlocal partial
        partial += text
        seen.append(partial)
        ticks.append(time.monotonic())

    result = run_heard(sandbox, "echo one; sleep 0.3; printf 'two\\xff'", 20.0, listen)
    assert time.monotonic() - ticks[0] > 0.2
    assert (seen[0], seen[-1]) == ("one\n", "one\ntwo\ufffd")
    format_ = ObservationFormat()
    observation = format_.format(result, sandbox.workdir, 20.0)
    assert observation == "one\ntwo\ufffd\n[exit 0] ~"
    assert all(format_.may_become(heard, observation) for heard in seen)
    assert not format_.may_become("on the way", observation)
