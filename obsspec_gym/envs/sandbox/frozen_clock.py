"""A clock that stands still, for programs that ask what time it is.

A small library, compiled on first use, answers for the system clock in every program that is linked dynamically: the
shell, coreutils, git, Python. It leaves the other clocks alone, so that sleeping, timeouts and measured waits of
programs go on as ever, and it leaves file times alone, so that ``make`` and ``find -newer`` stay right. For their sake
the clock is by default later than any file can be: nothing lies in the future, and ``ls`` shows no time of day.

Why not libfaketime: as Debian ships it (0.9.10), Python's ``time.sleep`` fails under it, and bash's own clock
(``$EPOCHREALTIME``) runs on. Programs that wait until an absolute time of the system clock (few do) wait
too long under any such library.
"""

from __future__ import annotations

import datetime
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from obsspec_gym.envs.cache import cache_root
from obsspec_gym.envs.sandbox.image_root import check_reach
from obsspec_gym.errors import InvalidArgumentError, SandboxUnavailableError

FROZEN_AT = "2037-01-01 00:00:00"
"""The time that a frozen clock shows unless it is told another, in UTC."""

_FORMAT = "%Y-%m-%d %H:%M:%S"
_COMPILERS = ("cc", "gcc", "clang")

_SOURCE = r"""
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *now) {
  if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE && clock != CLOCK_TAI)
    return (int)syscall(SYS_clock_gettime, clock, now);
  now->tv_sec = SECONDS;
  now->tv_nsec = 0;
  return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  (void)zone;
  if (now) now->tv_sec = SECONDS, now->tv_usec = 0;
  return 0;
}

int timespec_get(struct timespec *now, int base) {
  return clock_gettime(CLOCK_REALTIME, now) ? 0 : base;
}

time_t time(time_t *now) {
  if (now) *now = SECONDS;
  return SECONDS;
}
"""


def read_frozen_clock(frozen: bool | str) -> int | None:
    """The second since 1970 at which a clock shall stand, from what users may write; ``None`` for a clock that runs.

    Args:
        frozen: Whether, or at which time (``YYYY-MM-DD HH:MM:SS``, UTC).

    Raises:
        InvalidArgumentError: If it is neither.

    Example:
        >>> read_frozen_clock("1970-01-01 00:01:00")
        60
    """
    if isinstance(frozen, bool):
        return read_frozen_clock(FROZEN_AT) if frozen else None
    try:
        seconds = int(datetime.datetime.strptime(frozen, _FORMAT).replace(tzinfo=datetime.UTC).timestamp())
    except (TypeError, ValueError):
        seconds = -1
    if seconds < 0:
        raise InvalidArgumentError(f"frozen_clock must be a bool or a time like {FROZEN_AT!r}, got {frozen!r}")
    return seconds


def frozen_clock_available() -> str | None:
    """Why no clock can be frozen here and what can be done, in one sentence; ``None`` when it can."""
    try:
        frozen_clock_library(0)
    except SandboxUnavailableError as error:
        return str(error)
    return None


def frozen_clock_library(seconds: int, uid: int | None = None) -> Path:
    """The library to preload; compiled once on this machine, and kept in the cache.

    Args:
        seconds: Where the clock stands, since 1970.
        uid: Who must be able to reach it; this user if ``None``.

    Raises:
        SandboxUnavailableError: If there is no C compiler, it fails, or there is nowhere to keep the library.
    """
    digest = hashlib.sha256(f"{platform.machine()} {seconds} {_SOURCE}".encode()).hexdigest()[:16]
    library = cache_root() / "clock" / f"{digest}.so"
    if not library.exists():
        try:
            library.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=library.parent, prefix=".making-") as making:
                made = Path(making) / library.name
                _compile(seconds, made)
                made.chmod(0o755)
                made.rename(library)  # another process may have been quicker: either is as good
        except OSError as error:
            raise SandboxUnavailableError(
                f"the library for a frozen clock cannot be kept in {library.parent} ({error.strerror}): "
                "set XDG_CACHE_HOME to a directory that can be written to."
            ) from error
    if uid is not None and uid != os.geteuid():
        check_reach(library, uid)
    return library


def _compile(seconds: int, library: Path) -> None:
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        raise SandboxUnavailableError(
            "a frozen clock needs a C compiler: install gcc with the system's package manager."
        )
    # Without the C library: it is there in every program that loads this, in whatever version.
    command = [compiler, "-shared", "-fPIC", "-O1", "-nostdlib", f"-DSECONDS={seconds}L", "-x", "c", "-"]
    command += ["-o", str(library)]
    try:
        done = subprocess.run(command, input=_SOURCE.encode(), capture_output=True, timeout=60.0, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SandboxUnavailableError(f"the library for a frozen clock cannot be compiled: {error}") from error
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().replace("\n", "; ")
        raise SandboxUnavailableError(f"the library for a frozen clock cannot be compiled: {said}")
