"""A clock that stands still: for whoever asks the time, and for nobody who waits."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from obsspec_gym.envs.images import image_tree
from obsspec_gym.envs.sandbox import Sandbox, frozen_clock, make_sandbox
from obsspec_gym.envs.sandbox.bubblewrap import BubblewrapSandbox, bubblewrap_available
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


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache that whoever sandboxes are started as can reach."""
    for parent in tmp_path.parents:
        if parent.stat().st_uid == os.geteuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o011)
    tmp_path.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "obsspec_gym" / "clock"


def test_without_a_compiler_it_is_said_what_is_missing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(SandboxUnavailableError, match="install gcc"):
        frozen_clock_library(5)
    assert "install gcc" in (frozen_clock_available() or "")
    assert os.listdir(cache) == []


def test_a_compiler_that_fails_is_quoted(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if frozen_clock_available():
        pytest.skip("no C compiler")
    monkeypatch.setattr(frozen_clock, "_SOURCE", "nonsense")
    with pytest.raises(SandboxUnavailableError, match=r"cannot be compiled: .*error"):
        frozen_clock_library(6)


def test_a_cache_that_cannot_be_written_to_is_named(cache: Path) -> None:
    cache.parent.write_text("a file where the cache should be")
    with pytest.raises(SandboxUnavailableError, match="set XDG_CACHE_HOME"):
        frozen_clock_library(5)


def test_the_library_is_made_once_and_anew_when_somebody_removed_it(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason := bubblewrap_available() or frozen_clock_available():
        pytest.skip(reason)
    made = []
    compile_ = frozen_clock._compile
    monkeypatch.setattr(frozen_clock, "_compile", lambda *where: made.append(where) or compile_(*where))
    for _ in range(2):
        frozen_clock_library(7)
    assert len(made) == 1
    temporary = set(Path(tempfile.gettempdir()).glob("obsspec-clock*"))
    for path in cache.iterdir():
        path.unlink()
    sandbox = make_sandbox("bubblewrap", frozen_clock="1970-01-01 00:00:07")
    try:
        sandbox.start()
        assert said(sandbox, "date +%s") == "7"
    finally:
        sandbox.close()
    assert len(made) == 2
    assert len(list(cache.iterdir())) == 1  # nothing half made beside it, nothing elsewhere
    assert set(Path(tempfile.gettempdir()).glob("obsspec-clock*")) == temporary


def test_in_an_image_the_clock_stands_still_as_well() -> None:
    if reason := bubblewrap_available() or frozen_clock_available():
        pytest.skip(reason)
    try:
        tree = image_tree()
    except SandboxUnavailableError as error:
        pytest.skip(str(error))
    sandbox = BubblewrapSandbox(root=tree, frozen_clock="2001-02-03 04:05:06")
    try:
        sandbox.start()
        assert sandbox.provision("date +%F >/srv/made", {}).exit_code == 0
        assert said(sandbox, "date +%F; cat /srv/made; sleep 0.01 && echo slept") == "2001-02-03\n2001-02-03\nslept"
        assert sandbox.verify("date +%F", {}, {}).output == b"2001-02-03\n"
    finally:
        sandbox.close()
