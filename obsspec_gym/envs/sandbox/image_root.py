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

ASIDE = "/dev/obsspec"
"""Where the files of a verifier or of a provisioning script lie, as seen by these: not in the image, for that an agent
may have filled."""

KEPT = ("upper", "sealed")
"""What a fork copies of :data:`LAYER`: what was written, and what had been before the agent's first command."""

LAYER = "/layer"
_MIB = 2**20
_LOWER, _ROOT, _BUILT, _FRESH = "/lower", "/image", "/built", "/fresh"
_SEALED = f"{LAYER}/sealed/built"
_ENTER = "/supervisor/enter"
_CAPABILITIES = "CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP"
_BELOW = f"below={_LOWER}; [[ ! -d {_SEALED} ]] || below={_SEALED}:{_LOWER}"
_MOUNT = (
    f"{_BELOW}; mount -t overlay -o lowerdir=$below,upperdir={LAYER}/upper,workdir={LAYER}/work,userxattr "
    f"overlay {_ROOT} || {{ echo 'this kernel refuses the overlay that an image needs'; false; }}"
)
_UPPER = f"mkdir {LAYER}/upper && chmod --reference={_LOWER} {LAYER}/upper"
# What has been written so far goes below; from here on, what is written can be told from it.
_SEAL = (
    f"[[ -d {_SEALED} ]] || {{ umount {_ROOT} && mv {LAYER}/upper {_SEALED} && {_UPPER} && rm -rf {LAYER}/work && "
    f"mkdir {LAYER}/work && {{ {_MOUNT}; }}; }}"
)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?")

# Arguments: ROLE UID GID WORKDIR COMMAND... The words for bwrap go through a file: they do not show in the agent's
# list of processes. What an agent can have made of the tree is never followed as a link.
_SCRIPT = r"""
role=$1 uid=$2 gid=$3 workdir=$4
shift 4
shopt -s nullglob dotglob
words=({fixed} --uid "$uid" --gid "$gid")
if [[ $role != agent ]]; then
    for capability in {capabilities}; do words+=(--cap-add "CAP_$capability"); done
fi
if [[ $role == as_built ]]; then
    # The machine as it was built, in a layer of its own; over it what the agent left, but for programs and settings.
    {below}
    umount {built} 2>/dev/null
    umount {fresh} 2>/dev/null
    mount -t tmpfs -o size={size},nr_inodes=16384,mode=755 fresh {fresh} && mkdir {fresh}/upper {fresh}/work &&
        chmod --reference={root} {fresh}/upper || exit 1
    layers=lowerdir=$below,upperdir={fresh}/upper,workdir={fresh}/work
    mount -t overlay -o "$layers,userxattr" overlay {built} || exit 1
    words+=(--bind {built} /)
    for path in {built}/* {root}/*; do
        name=${{path##*/}}
        case $name in usr | bin | sbin | lib* | etc | boot | proc | sys | dev) continue ;; esac
        if [[ ! -e {root}/$name && ! -L {root}/$name ]]; then
            rm -rf --one-file-system "{built}/$name"
        elif [[ $path == {root}/* ]]; then
            # What is there as built is of another kind, perhaps: nothing is laid over it or through it.
            [[ -d $path && ! -L $path && -d {built}/$name && ! -L {built}/$name ]] ||
                rm -rf --one-file-system "{built}/$name"
            if [[ -L $path ]]; then
                words+=(--symlink "$(readlink "$path")" "/$name")
            elif [[ -d $path || -f $path ]]; then
                words+=(--bind "$path" "/$name")
            fi
        fi
    done
elif [[ $uid == 0 ]]; then
    words+=(--bind {root} /)
else
    words+=(--ro-bind {root} /)
    for path in {root}/*; do
        name=${{path#{root}/}}
        [[ -L $path || ! -d $path ]] && continue
        case $name in
            root) [[ $workdir/ == /root/* ]] || words+=(--size 4096 --perms 0000 --tmpfs /root --remount-ro /root) ;;
            usr | bin | sbin | lib* | etc | boot | proc | sys | dev) ;;
            *) words+=(--bind "$path" "/$name") ;;
        esac
    done
    [[ $workdir == /@(usr|etc|boot)/* && $(realpath -e "{root}$workdir" 2>/dev/null) == "{root}$workdir" ]] &&
        words+=(--bind "{root}$workdir" "$workdir")
fi
words+=({mounts})
# Before /dev is made read-only, which comes last.
[[ $role == agent ]] || words+=(--ro-bind {aside} {aside})
words+=({last})
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
        directories = [word for path in (LAYER, _ROOT, _BUILT, _FRESH) for word in ("--dir", path)]
        return ["--ro-bind", str(self.path.absolute()), _LOWER, *directories]

    def prepare(self, program: str, fixed: Sequence[str], mounts: Sequence[str], last: Sequence[str]) -> str:
        """Bash that mounts the root and lays the script that starts inner layers.

        Args:
            program: The bwrap program, as the supervisor sees it.
            fixed: First arguments of every inner layer: its namespaces.
            mounts: Arguments of every inner layer that lay something over the root.
            last: The last ones, after which nothing is laid any more.
        """
        script = _SCRIPT.format(
            fixed=shlex.join(fixed),
            mounts=shlex.join(mounts),
            last=shlex.join(last),
            program=program,
            root=_ROOT,
            aside=ASIDE,
            capabilities=_CAPABILITIES,
            below=_BELOW,
            built=_BUILT,
            fresh=_FRESH,
            size=min(self.disk_mib, 256) * _MIB,
            arguments="/supervisor/arguments/entered",
        )
        size = f"size={self.disk_mib * _MIB},nr_inodes={self.disk_mib * 1024},mode=755"
        lines = [
            f"mount -t tmpfs -o {size} layer {LAYER}",
            f"mkdir {LAYER}/sealed {LAYER}/work && {_UPPER}",
            _MOUNT,
            f"mkdir -p {_ROOT}/proc {_ROOT}/dev {_ROOT}/tmp",
            f"printf %s {shlex.quote(script)} >{_ENTER}",
        ]
        if self.workdir is not None:
            inside = shlex.quote(_ROOT + self.workdir)
            lines.append(f"[[ -e {inside} || $(realpath -m {inside}) != {inside} ]] || mkdir -p {inside}")
        return " &&\n".join(f"{{ {line}; }}" for line in lines)

    def enter(self, role: str, account: Account | None = None, workdir: str = "/") -> str:
        """Bash words that start an inner layer: for the ``agent``, or for a script of the caller's.

        Args:
            role: ``agent``; ``aside``, over the image as it is; ``as_built``, over what the agent left in it, with the
                programs and settings that it had before the agent's first command.
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

    def seal(self) -> str:
        """Bash that notes how the image was built; for when nothing runs in it. Does nothing the second time."""
        return _SEAL

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
