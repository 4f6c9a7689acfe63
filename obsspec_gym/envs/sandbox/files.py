"""Files on their way into a sandbox."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from pathlib import PurePosixPath

from obsspec_gym.errors import InvalidArgumentError

EPOCH = 1_704_067_200
"""Modification time of every laid file (2024-01-01 00:00 UTC), so that listings are reproducible."""


def pack(files: Mapping[str, str | bytes]) -> bytes:
    """A compressed tar of files: mode 0o755 for contents that begin with ``#!``, 0o644 for others, fixed times.

    Args:
        files: Relative path to content; text is encoded as UTF-8.

    Raises:
        InvalidArgumentError: For a path that is absolute, empty or leads outside, or a content of another type.
    """
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz", compresslevel=1) as tar:
        tar.addfile(_entry(".", 0o755, tarfile.DIRTYPE))
        contents: dict[PurePosixPath, bytes | None] = {}
        for path, content in files.items():
            contents.update(dict.fromkeys(_inside(path).parents))
            contents[_inside(path)] = _bytes(path, content)
        # Each directory right before what is in it: tar sets its time when it leaves it.
        for where, data in sorted(contents.items()):
            if data is not None:
                entry = _entry(str(where), 0o755 if data.startswith(b"#!") else 0o644)
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
            elif where.name:
                tar.addfile(_entry(str(where), 0o755, tarfile.DIRTYPE))
    return archive.getvalue()


def _inside(path: str) -> PurePosixPath:
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or not pure.name or "\0" in path:
        raise InvalidArgumentError(f"a file's path must be relative and stay inside, got {path!r}")
    return pure


def _bytes(path: str, content: str | bytes) -> bytes:
    if isinstance(content, bytes):
        return content
    if not isinstance(content, str):
        raise InvalidArgumentError(f"the content of {path} must be str or bytes, got {type(content).__name__}")
    try:
        return content.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"the content of {path} must be valid Unicode or bytes: {error}") from None


def _entry(name: str, mode: int, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.mode, entry.type, entry.mtime = mode, kind, EPOCH
    return entry
