"""How the files of one sandbox get into another: an archive, from supervisor to supervisor, through this process.

Supervisors read and write as the root of a user namespace of their own where they can, for an agent may have taken
permissions from itself. This process touches no file, so nothing that an agent may do to its files while they are
read (a directory that becomes a symbolic link, say) leads out of the sandbox.
"""

from __future__ import annotations

import os
import select
import shlex
import time
from pathlib import PurePosixPath

from obsspec_gym.envs.execution import Execution
from obsspec_gym.envs.sandbox.layers import Layers
from obsspec_gym.envs.sandbox.pipes import Intake
from obsspec_gym.envs.shell import Shell
from obsspec_gym.errors import SandboxError

_COPY_SECONDS = 120.0

_ROOT = "as_root=; ((EUID)) && unshare -r true 2>/dev/null && as_root='unshare -r'; "
# By these an overlay knows that a directory hides the one below.
_ATTRIBUTES = "--xattrs --xattrs-include=user.overlay.*"
# Standard output is the archive's; what tar has to say is kept for whoever asks.
_PACK = (
    f"{{{{ said=$($as_root tar --format=posix --pax-option=delete=atime,delete=ctime --sparse {_ATTRIBUTES} "
    "--numeric-owner -cf - -C {base} -- {names} 2>&1 >&9 9>&-); }} 9>&1"
)
_UNPACK = (
    f"$as_root tar --numeric-owner --same-owner {_ATTRIBUTES} "
    "-xpf - -C {base} <&{fd}; status=$?; exec {fd}<&-; "
    "\\builtin test $status -eq 0"
)
_CHANGED = 1  # tar's exit status where a file changed, or went, while it was read


def copy_files(origin: Shell, source: Layers, twin: Shell, target: Layers, intake: Intake) -> None:
    """Copies what a sandbox keeps into a new one.

    Args:
        origin: The supervisor of the sandbox that is copied.
        source: Its layers.
        twin: The supervisor of the new one.
        target: Its layers.
        intake: Leads into the new one; closed afterwards.

    Raises:
        SandboxError: If something could not be read or written.
    """
    unpacking = twin.execute(_ROOT + _UNPACK.format(base=shlex.quote(target.base), fd=intake.theirs), _COPY_SECONDS)
    names = shlex.join(source.kept)
    packing = origin.execute(_ROOT + _PACK.format(base=shlex.quote(source.base), names=names), _COPY_SECONDS)
    try:
        whole = _pass_on(packing, intake.ours)
        status = packing.finish().exit_code
    except BaseException:
        origin.run(":", _COPY_SECONDS)  # takes the rest of the archive out of the way
        raise
    finally:
        intake.close()
    unpacked = unpacking.finish()
    if status not in (0, _CHANGED):
        said = origin.run('printf %s "$said"', _COPY_SECONDS).output
        raise SandboxError(f"the sandbox's files could not be read: {_tell(said)}")
    if unpacked.exit_code != 0 or not whole:
        raise SandboxError(f"the sandbox's files could not be copied: {_tell(unpacked.output)}")


def moved(cwd: str, home: str, new_home: str) -> str:
    """A directory of one sandbox as it is called in a copy whose home is elsewhere.

    Example:
        >>> moved("/tmp/a/home/src", "/tmp/a/home", "/tmp/b/home"), moved("/", "/tmp/a/home", "/tmp/b/home")
        ('/tmp/b/home/src', '/')
    """
    path = PurePosixPath(cwd)
    return str(new_home / path.relative_to(home)) if path.is_relative_to(home) else cwd


def _pass_on(packing: Execution, fd: int) -> bool:
    """Writes an archive into a pipe as it comes; False when nobody reads it any more (the rest is taken away)."""
    read = True
    for piece in packing:
        try:
            if read:
                _write(fd, piece)
        except BrokenPipeError:
            read = False
    return read


def _write(fd: int, data: bytes) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    deadline = time.monotonic() + _COPY_SECONDS
    rest = memoryview(data)
    while rest:
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise SandboxError("the sandbox's files could not be copied: it took too long")
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:
            continue


def _tell(said: bytes) -> str:
    return said.decode("utf-8", "replace").strip().replace("\n", "; ")[:500] or "tar did not say why"
