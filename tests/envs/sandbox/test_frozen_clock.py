"""A clock that stands still: for whoever asks the time, and for nobody who waits."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from obsspec_gym.envs.sandbox import Sandbox, frozen_clock, make_sandbox
from obsspec_gym.envs.sandbox.bubblewrap import bubblewrap_available
from obsspec_gym.envs.sandbox.frozen_clock import frozen_clock_available, frozen_clock_library, read_frozen_clock
from obsspec_gym.errors import InvalidArgumentError, SandboxUnavailableError


@pytest.fixture(scope="module")
def frozen() -> Iterator[Sandbox]:
    if reason := bubblewrap_available() or frozen_clock_available():
        pytest.skip(reason)
    sandbox = make_sandbox("bubblewrap", frozen_clock="2001-02-03 04:05:06")
    sandbox.start()
    yield sandbox
    sandbox.close()


def said(sandbox: Sandbox, command: str) -> str:
    return sandbox.run(command).output.decode().strip()


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("date +%FT%T.%N", "2001-02-03T04:05:06.000000000"),
        ("date; sleep 0.01; date", "Sat Feb  3 04:05:06 UTC 2001\nSat Feb  3 04:05:06 UTC 2001"),
        ("printf '%(%F)T\\n' -1; echo $EPOCHREALTIME", "2001-02-03\n981173106.000000"),
        ("(date +%F)", "2001-02-03"),
        ("sleep 0.1 && echo slept", "slept"),
        ("timeout 0.1 sleep 5; echo $?", "124"),
        ("read -t 0.1 line < <(sleep 5); echo $?", "142"),
        ("touch -d 2020-01-01 old; touch new; [ new -nt old ] && find . -name new -newermt 2020-06-01", "./new"),
    ],
)
def test_who_asks_is_told_one_time_and_who_waits_waits(command: str, expected: str, frozen: Sandbox) -> None:
    assert said(frozen, command) == expected


def test_python_is_told_the_same_and_can_sleep(frozen: Sandbox) -> None:
    if said(frozen, "command -v python3") == "":
        pytest.skip("there is no python3 in the sandbox")
    code = "import time; a = time.monotonic(); time.sleep(0.05); print(time.time(), time.monotonic() - a > 0.04)"
    assert said(frozen, f"python3 -c '{code}'") == "981173106.0 True"


def test_the_verifier_and_a_new_shell_have_the_same_clock(frozen: Sandbox) -> None:
    assert frozen.verify("date +%F", {}, {}).output == b"2001-02-03\n"
    assert frozen.run("exit 3").restarted
    assert said(frozen, "date +%F") == "2001-02-03"


def test_by_default_the_clock_runs() -> None:
    if reason := bubblewrap_available():
        pytest.skip(reason)
    sandbox = make_sandbox("bubblewrap")
    try:
        sandbox.start()
        assert said(sandbox, "date +%Y") >= "2024"
        assert said(sandbox, "echo $LD_PRELOAD") == ""
    finally:
        sandbox.close()


def test_what_users_may_write() -> None:
    assert read_frozen_clock(False) is None
    assert read_frozen_clock(True) == 2_114_380_800
    assert read_frozen_clock("1970-01-01 00:00:10") == 10
    for wrong in ("yesterday", "2024-01-01", "", 7, None, "1969-01-01 00:00:00"):
        with pytest.raises(InvalidArgumentError, match="frozen_clock must be a bool or a time like"):
            read_frozen_clock(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="without an image"):
        make_sandbox("bubblewrap", root="/somewhere", frozen_clock=True)


def test_without_a_compiler_it_is_said_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    frozen_clock_library.cache_clear()
    with pytest.raises(SandboxUnavailableError, match="install gcc"):
        frozen_clock_library(5)
    assert "install gcc" in (frozen_clock_available() or "")


def test_a_compiler_that_fails_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    if frozen_clock_available():
        pytest.skip("no C compiler")
    monkeypatch.setattr(frozen_clock, "_SOURCE", "nonsense")
    frozen_clock_library.cache_clear()
    with pytest.raises(SandboxUnavailableError, match=r"cannot be compiled: .*error"):
        frozen_clock_library(6)
