"""What an image is made from: a directory that people edit."""

from __future__ import annotations

import hashlib
import platform
import re
from dataclasses import dataclass
from pathlib import Path

from obsspec_gym.errors import InvalidArgumentError

_BUILD = 1
"""Counts the changes of how images are built that make other images from the same definition."""

_PACKAGED = Path(__file__).parent / "definitions"
_CHECKOUT = Path(__file__).parents[3] / "envs" / "images"
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+")


@dataclass(frozen=True, slots=True)
class Definition:
    """An image's definition.

    Attributes:
        path: A directory with ``packages.txt`` (Debian packages, one a line, ``#`` begins a comment), ``files/``
            (laid over the packages' files) and ``configure.sh`` (run last, as root inside, with ``sh``).
    """

    path: Path

    @property
    def name(self) -> str:
        """What it is called."""
        return self.path.name

    @property
    def packages(self) -> list[str]:
        """Names of Debian packages, without what they depend on.

        Raises:
            InvalidArgumentError: For a line that is no package's name.
        """
        names = []
        for line in (self.path / "packages.txt").read_text("utf-8").splitlines():
            if name := line.partition("#")[0].strip():
                if not _PACKAGE.fullmatch(name):
                    raise InvalidArgumentError(f"{self.path / 'packages.txt'}: expected a package's name, got {name!r}")
                names.append(name)
        return names

    @property
    def files(self) -> dict[str, bytes]:
        """Path to content of what is laid over the packages' files."""
        top = self.path / "files"
        return {
            path.relative_to(top).as_posix(): path.read_bytes() for path in sorted(top.rglob("*")) if path.is_file()
        }

    @property
    def script(self) -> str:
        """What is run last."""
        return (self.path / "configure.sh").read_text("utf-8")

    @property
    def digest(self) -> str:
        """Names everything that decides what is built, but for the versions in the archive: 16 hexadecimal digits."""
        hashed = hashlib.sha256(f"{_BUILD} {platform.machine()}\0{' '.join(self.packages)}\0{self.script}\0".encode())
        for path, content in self.files.items():
            hashed.update(f"{path}\0{len(content)}\0".encode() + content)
        return hashed.hexdigest()[:16]


def find_definition(name: str = "base") -> Definition:
    """The definition that comes with the package under a name, or that lies in a directory.

    Args:
        name: A name, or a path with a ``/`` in it.

    Raises:
        InvalidArgumentError: If there is none.

    Example:
        >>> "git" in find_definition("base").packages
        True
    """
    found = [Path(name)] if "/" in name else [_PACKAGED / name, _CHECKOUT / name]
    for path in found:
        if (path / "packages.txt").is_file() and (path / "configure.sh").is_file():
            return Definition(path.resolve())
    raise InvalidArgumentError(f"no image is called {name!r}: expected base, or a directory with packages.txt in it")
