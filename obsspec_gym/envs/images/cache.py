"""Where built images lie, and how they are handed on."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from obsspec_gym.envs.cache import cache_root
from obsspec_gym.envs.images.definition import find_definition
from obsspec_gym.envs.sandbox.files import EPOCH
from obsspec_gym.errors import SandboxUnavailableError

_AGENT = 1000
_AGENTS = "home/agent"


def cache_directory() -> Path:
    """Below :func:`~obsspec_gym.envs.cache.cache_root`."""
    return cache_root() / "images"


def cached(name: str = "base") -> Path:
    """Where the tree of an image is, once it is built: the place names the definition's content."""
    definition = find_definition(name)
    return cache_directory() / f"{definition.name}-{definition.digest}"


def image_tree(name: str = "base") -> Path:
    """The directory tree of a built image, for ``BubblewrapSandbox(root=...)``. Builds nothing.

    Raises:
        InvalidArgumentError: If no image is called that.
        SandboxUnavailableError: If it is not built on this machine; says how.
    """
    tree = cached(name)
    if not tree.is_dir():
        words = "" if name == "base" else f" {name}"
        raise SandboxUnavailableError(f"the image {name} is not built on this machine: obsspec image build{words}")
    return tree


def image_tar(name: str = "base") -> Path:
    """A tar of a built image, for ``docker import``: made on first use, beside the tree.

    Everything in it belongs to root but the home of the agent (user 1000).

    Raises:
        InvalidArgumentError: If no image is called that.
        SandboxUnavailableError: If it is not built on this machine; says how.
    """
    tree = image_tree(name)
    path = tree.with_name(f"{tree.name}.tar")
    if not path.is_file():
        with _whole(path) as partial:
            write_tar(tree, partial)
    return path


def image_content(name: str = "base") -> str:
    """What names the content of a built image, whatever of the archive went into it: 16 hexadecimal digits.

    Raises:
        InvalidArgumentError, SandboxUnavailableError: As :func:`image_tar`.
    """
    tar = image_tar(name)
    status = tar.stat()
    which = f"{status.st_ino} {status.st_size} {status.st_mtime_ns}"
    note = tar.with_name(f"{tar.name}.sha256")
    with contextlib.suppress(OSError):
        noted, _, of = note.read_text("utf-8").partition(" ")
        if of == which:
            return noted
    with tar.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:16]
    # Where that cannot be, in a cache of somebody else's, it is counted again next time.
    with contextlib.suppress(OSError), _whole(note) as partial:
        partial.write_text(f"{digest} {which}", "utf-8")
    return digest


def write_tar(tree: Path, path: Path) -> None:
    """Writes a tree as a tar in which everything belongs to root but the agent's home."""

    def owned(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        agents = entry.name == _AGENTS or entry.name.startswith(f"{_AGENTS}/")
        entry.uid = entry.gid = _AGENT if agents else 0
        entry.uname = entry.gname = ""
        entry.mtime = int(entry.mtime) if entry.name else EPOCH
        return entry

    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for name in sorted(os.listdir(tree)):
            tar.add(tree / name, name, filter=owned)


@contextlib.contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """Where to write a file that is there whole, in the end, or not at all."""
    descriptor, partial = tempfile.mkstemp(prefix=".partial-", dir=path.parent)
    os.close(descriptor)
    try:
        yield Path(partial)
        os.rename(partial, path)
    except BaseException:
        os.unlink(partial)
        raise
