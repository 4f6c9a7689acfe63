"""A sandbox whose whole file system is an image: a directory tree, with everything written kept in memory above it.

The outer layer's supervisor (with this machine's programs, never the image's, which an agent may have changed) mounts
an overlay: the tree below, read-only; above it one file system in memory, bounded in size and in number of files.
Inner layers have the overlay as their root. There is one user only: who is called root or agent inside is the same to
the kernel, so files cannot be given away. Whoever is not root finds ``/``, ``/usr``, ``/etc`` and ``/boot`` read-only
and ``/root`` empty, and may write in every other directory.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from obsspec_gym.errors import InvalidArgumentError, SandboxError, SandboxUnavailableError

ASIDE = "/.obsspec"
"""Where the files of a verifier or of a provisioning script lie, as seen by these."""

_MIB = 2**20
_LOWER, _LAYER, _ROOT = "/lower", "/layer", "/image"
_ENTER = "/supervisor/enter"
_CAPABILITIES = "CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP"
_LAYERS = f"lowerdir={_LOWER},upperdir={_LAYER}/upper,workdir={_LAYER}/work,userxattr"
_MOUNT = (
    f"mount -t overlay -o {_LAYERS} overlay {_ROOT} || "
    "{ echo 'this kernel refuses the overlay that an image needs'; false; }"
)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?")

# Arguments: ROLE UID GID WORKDIR COMMAND... The words for bwrap go through a file: they do not show in the agent's
# list of processes. What an agent can have made of the tree is never followed as a link.
_SCRIPT = r"""
role=$1 uid=$2 gid=$3 workdir=$4
shift 4
shopt -s nullglob dotglob
words=({fixed} --uid "$uid" --gid "$gid")
[[ -e {root}{aside} || -L {root}{aside} ]] && rm -rf --one-file-system {root}{aside}
if [[ $role == aside ]]; then
    mkdir -m 755 {root}{aside}
    for capability in {capabilities}; do words+=(--cap-add "CAP_$capability"); done
fi
if [[ $uid == 0 ]]; then
    words+=(--bind {root} /)
else
    words+=(--ro-bind {root} /)
    for path in {root}/*; do
        name=${{path#{root}/}}
        [[ -L $path || ! -d $path ]] && continue
        case $name in
            root) [[ $workdir/ == /root/* ]] || words+=(--size 4096 --perms 0000 --tmpfs /root --remount-ro /root) ;;
            usr | bin | sbin | lib* | etc | boot | proc | sys | dev | {aside_name}) ;;
            *) words+=(--bind "$path" "/$name") ;;
        esac
    done
    [[ $workdir == /@(usr|etc|boot)/* && $(realpath -e "{root}$workdir" 2>/dev/null) == "{root}$workdir" ]] &&
        words+=(--bind "{root}$workdir" "$workdir")
fi
[[ $role != aside ]] || words+=(--ro-bind {aside} {aside})
words+=({mounts})
printf '%s\0' "${{words[@]}}" >{arguments}
exec {program} --args 9 9<{arguments} -- "$@"
"""


@dataclass(frozen=True, slots=True)
class Account:
    """A line of the image's ``/etc/passwd``."""

    name: str
    uid: int
    gid: int
    home: str


@dataclass(frozen=True, slots=True)
class ImageRoot:
    """The tree, and who the agent is in it.

    Attributes:
        path: The tree.
        user: The agent: a name or a number, with ``:group`` or without.
        workdir: Its first working directory; ``None`` for its home.
        disk_mib: How much can be written in all, in MiB.

    Raises:
        InvalidArgumentError: For a user or a working directory that cannot be one.
    """

    path: Path
    user: str
    workdir: str | None
    disk_mib: int

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.user):
            raise InvalidArgumentError(f"user must be a name or a number, with :group or without, got {self.user!r}")
        if self.workdir is not None and (os.path.normpath(self.workdir) != self.workdir or self.workdir[0] != "/"):
            raise InvalidArgumentError(f"workdir must be an absolute, normal path, got {self.workdir!r}")

    def check(self, uid: int) -> None:
        """Refuses a tree that user ``uid`` of this machine cannot have as a root.

        Raises:
            SandboxUnavailableError: If it is none, is not owned by that user, or is out of that user's reach.
        """
        path = self.path.absolute()
        for needed in ("bin/bash", "usr/bin/env"):
            if not os.path.lexists(path / needed):
                raise SandboxUnavailableError(
                    f"{path} is no image: it has no /{needed} (make one: obsspec image build)."
                )
        if (owner := path.stat().st_uid) != uid:
            raise SandboxUnavailableError(
                f"the image {path} belongs to user {owner}, but sandboxes are started as user {uid}: "
                f"chown -R {uid} {shlex.quote(str(path))}"
            )
        check_reach(path, uid)

    def outer(self) -> list[str]:
        """What the outer layer needs besides."""
        return ["--cap-add", "ALL", "--ro-bind", str(self.path.absolute()), _LOWER, "--dir", _LAYER, "--dir", _ROOT]

    def prepare(self, program: str, fixed: Sequence[str], mounts: Sequence[str]) -> str:
        """Bash that mounts the root and lays the script that starts inner layers.

        Args:
            program: The bwrap program, as the supervisor sees it.
            fixed: First arguments of every inner layer: its namespaces.
            mounts: Last arguments of every inner layer: what lies over the root.
        """
        script = _SCRIPT.format(
            fixed=shlex.join(fixed),
            mounts=shlex.join(mounts),
            program=program,
            root=_ROOT,
            aside=ASIDE,
            capabilities=_CAPABILITIES,
            aside_name=ASIDE.lstrip("/"),
            arguments="/supervisor/arguments/entered",
        )
        size = f"size={self.disk_mib * _MIB},nr_inodes={self.disk_mib * 1024},mode=755"
        lines = [
            f"mount -t tmpfs -o {size} layer {_LAYER}",
            f"mkdir {_LAYER}/upper {_LAYER}/work",
            f"chmod --reference={_LOWER} {_LAYER}/upper",
            _MOUNT,
            f"mkdir -p {_ROOT}/proc {_ROOT}/dev {_ROOT}/tmp",
            f"printf %s {shlex.quote(script)} >{_ENTER}",
        ]
        if self.workdir is not None:
            inside = shlex.quote(_ROOT + self.workdir)
            lines.append(f"[[ -e {inside} || $(realpath -m {inside}) != {inside} ]] || mkdir -p {inside}")
        return " &&\n".join(f"{{ {line}; }}" for line in lines)

    def enter(self, role: str, account: Account | None = None, workdir: str = "/") -> str:
        """Bash words that start an inner layer: for the ``agent``, or ``aside`` for a script of the caller's.

        Args:
            role: ``agent`` or ``aside``.
            account: Whom it runs as; ``None`` for root.
            workdir: A directory that can be written to in any case.
        """
        uid, gid = (account.uid, account.gid) if account else (0, 0)
        return f"bash {_ENTER} {role} {uid} {gid} {shlex.quote(workdir)}"

    def lookup(self, root: str = _ROOT) -> str:
        """Bash that prints what :meth:`account` reads.

        Args:
            root: Where the supervisor sees the image; by default in the overlay.
        """
        return f'printf "%s\\n--\\n%s\\n" "$(<{root}/etc/passwd)" "$(<{root}/etc/group)" 2>/dev/null'

    def account(self, printed: str) -> Account:
        """The agent's account, from what :meth:`lookup` printed.

        Raises:
            SandboxError: If there is none.
        """
        user, _, group = self.user.partition(":")
        before, _, after = printed.partition("\n--\n")
        users = [line.split(":") for line in before.splitlines() if line.count(":") == 6]
        groups = {line.split(":")[0]: line.split(":")[2] for line in after.splitlines() if line.count(":") == 3}
        for name, _, uid, gid, _, home, _ in [*users, ["root", "x", "0", "0", "root", "/root", "/bin/bash"]]:
            if user in (name, uid):
                chosen = groups.get(group, group) or gid
                if uid.isdigit() and chosen.isdigit():
                    return Account(name, int(uid), int(chosen), home or "/")
        if user.isdigit() and (not group or group.isdigit()):
            return Account(user, int(user), int(group or user), "/")
        raise SandboxError(f"there is no user {self.user!r} in the image")

    def unmount(self) -> str:
        """Bash that takes the root away, so that what was written can be exchanged below."""
        return f"umount {_ROOT}"

    def mount(self) -> str:
        """Bash that brings it back."""
        return _MOUNT

    def outside(self, path: str) -> str:
        """Where the supervisor sees a path of the image."""
        return _ROOT + path


def check_reach(path: Path, uid: int) -> None:
    """Refuses a place that user ``uid`` of this machine cannot get to.

    Raises:
        SandboxUnavailableError: Says which directory is in the way.
    """
    for parent in path.absolute().parents:
        status = parent.stat()
        if not status.st_mode & (0o100 if status.st_uid == uid else 0o001):
            raise SandboxUnavailableError(
                f"user {uid}, as whom sandboxes are started, cannot reach {path}: chmod o+x {parent}"
            )
