"""How an image is built: packages extracted by mmdebstrap, then configured inside a sandbox. No root is needed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path

from obsspec_gym.envs.images import apt
from obsspec_gym.envs.images.cache import cached
from obsspec_gym.envs.images.definition import Definition, find_definition
from obsspec_gym.envs.sandbox.bubblewrap import bubblewrap_available, bubblewrap_command, sandbox_uid
from obsspec_gym.envs.sandbox.files import EPOCH
from obsspec_gym.envs.sandbox.image_root import check_reach
from obsspec_gym.errors import InvalidArgumentError, SandboxError, SandboxUnavailableError

INSTALL = "apt-get install -y --no-install-recommends mmdebstrap"
"""The command that adds what building needs."""

_MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")  # what are links into /usr
_STAGE = "/mnt/stage"
_WORK = ".building-"

# What the script of a definition must not need to know: the database that dpkg-query reads, and times that are fixed.
_CONFIGURE = f"""
set -e
rm -rf /etc/apt/apt.conf.d/99mmdebstrap /etc/apt/sources.list /etc/apt/sources.list.d/* /var/cache/apt/archives/*.deb
mkdir -p /var/lib/dpkg/info
cp {_STAGE}/status /var/lib/dpkg/status
cp -r --no-preserve=ownership {_STAGE}/files/. /
sh {_STAGE}/configure.sh
find / -xdev \\( -path /proc -o -path /dev -o -path /mnt \\) -prune \\
    -o -newer {_STAGE}/begun -exec touch -h -d @{EPOCH} {{}} +
"""

Say = Callable[[str], None]


def build_image(
    name: str = "base", *, out: Path | None = None, rebuild: bool = False, say: Say = lambda line: None
) -> Path:
    """Builds an image from the Debian archive, unless it is there: half a minute, and the network.

    It appears when it is whole: an interrupted build leaves nothing.

    Args:
        name: As for :func:`obsspec_gym.envs.images.find_definition`.
        out: Where the tree shall be, if not in the cache: a path that does not exist.
        rebuild: Whether one that is there is replaced; sandboxes that run on it then break.
        say: Told each step, in a few words.

    Returns:
        The tree.

    Raises:
        InvalidArgumentError: If no image is called that, or ``out`` exists.
        SandboxUnavailableError: If this machine cannot build images; says what can be done.
        SandboxError: If a step failed; says what it printed.
    """
    definition = find_definition(name)
    packages = definition.packages
    target = cached(name) if out is None else out.absolute()
    if target.exists() and out is not None:
        raise InvalidArgumentError(f"{out} exists: expected a path for a new directory")
    if target.is_dir() and not rebuild:
        say("it is there already")
        return target
    _check_machine()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgumentError(f"nothing can be written to {target.parent}: {error.strerror}") from error
    check_reach(target, sandbox_uid())
    with _workshop(target.parent) as work:
        tree = work / "tree"
        _extract(packages, work, tree, say)
        _configure(definition, work, tree, say)
        _appear(tree, target)
    return target


def _check_machine() -> None:
    if shutil.which("mmdebstrap") is None:
        raise SandboxUnavailableError(f"mmdebstrap is needed to build images: {INSTALL}")
    if reason := bubblewrap_available():
        raise SandboxUnavailableError(reason)


@contextlib.contextmanager
def _workshop(beside: Path) -> Iterator[Path]:
    """A directory of the user's who sandboxes are started as; everything in it is removed in the end."""
    for left in beside.glob(f"{_WORK}*"):
        with _locked(left) as nobody_works_there:
            if nobody_works_there:  # its build was killed
                shutil.rmtree(left, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=_WORK, dir=beside))
    with _locked(work), _removed(work):
        for path in (work, work / "tmp", work / "stage"):
            path.mkdir(exist_ok=True)
            path.chmod(0o755)
            if os.geteuid() == 0:
                os.chown(path, sandbox_uid(), sandbox_uid())
        yield work


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[bool]:
    """Whether a directory could be locked; it is until the end, or until the end of this process."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            locked = False
        else:
            locked = True
        yield locked
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _removed(directory: Path) -> Iterator[None]:
    try:
        yield
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _extract(packages: Sequence[str], work: Path, tree: Path, say: Say) -> None:
    """Has mmdebstrap fetch and extract the packages; the fetched archives stay in the tree."""
    for name, text in apt.sources().items():
        (work / name).write_text(text, "utf-8")
    (work / "apt.conf").write_text("".join(f"{line}\n" for line in apt.options()), "utf-8")
    (work / "stage" / "begun").touch()
    links = "; ".join(f'mkdir -p "$1/usr/{name}" && ln -s usr/{name} "$1/{name}"' for name in _MERGED if _has(name))
    command = ["mmdebstrap", "--variant=extract", "--mode=chrootless", "--format=directory"]
    command += ["--skip=cleanup/apt,cleanup/tmp", f"--aptopt={work / 'apt.conf'}", f"--setup-hook={links}"]
    command += [f"--include={','.join(packages)}", "", str(tree)]
    command += [str(work / name) for name in ("archive.list", "archive.sources") if (work / name).exists()]
    said: list[str] = []
    with contextlib.closing(_run([*bubblewrap_command()[:-1], *command], work)) as lines:
        for line in lines:
            said.append(line)
            if line.startswith("I: ") and not line.startswith(("I: skipping", "I: running --", "I: success")):
                say(line.removeprefix("I: ").rstrip("."))
    if not (tree / "usr/bin").is_dir() or not list((tree / "var/cache/apt/archives").glob("*.deb")):
        raise SandboxError(f"mmdebstrap could not fetch the packages: {_last(said)}")


def _has(name: str) -> bool:
    return name in ("bin", "sbin", "lib", "lib64") or os.path.isdir(f"/{name}")


def _configure(definition: Definition, work: Path, tree: Path, say: Say) -> None:
    """Runs the definition's script in the tree, as the root of a user namespace that has nothing else in it."""
    stage = work / "stage"
    say("reading the packages' descriptions")
    (stage / "status").write_text(_status(tree), "utf-8")
    (stage / "files").mkdir()
    for path, content in definition.files.items():
        file = stage / "files" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    (stage / "configure.sh").write_text(definition.script, "utf-8")
    say("configuring")
    command = [*bubblewrap_command(), "--unshare-all", "--die-with-parent", "--new-session", "--clearenv"]
    command += ["--uid", "0", "--gid", "0", "--cap-add", "ALL", "--bind", str(tree), "/", "--proc", "/proc"]
    command += ["--setenv", "PATH", "/usr/sbin:/usr/bin:/sbin:/bin", "--setenv", "LC_ALL", "C.UTF-8"]
    command += ["--dev", "/dev", "--tmpfs", "/mnt", "--ro-bind", str(stage), _STAGE, "--chdir", "/"]
    said = list(_run([*command, "sh", "-c", f"{_CONFIGURE}\necho configured"], work))
    os.utime(tree / "mnt", (EPOCH, EPOCH))
    if said[-1:] != ["configured"]:
        raise SandboxError(f"the image could not be configured: {_last(said)}")


def _status(tree: Path) -> str:
    """dpkg's database, in which all that was extracted is installed."""
    stanzas = []
    for archive in sorted((tree / "var/cache/apt/archives").glob("*.deb")):
        done = subprocess.run(["dpkg-deb", "-f", archive], capture_output=True, text=True, timeout=60, check=True)
        name, _, rest = done.stdout.strip().partition("\n")
        stanzas.append(f"{name}\nStatus: install ok installed\n{rest}\n")
    return "\n".join(stanzas)


def _appear(tree: Path, target: Path) -> None:
    """Puts the tree in its place; another one that came meanwhile, or an old one, gives way."""
    replaced = tree.with_name("replaced")
    if target.is_dir():
        os.rename(target, replaced)
        target.with_name(f"{target.name}.tar").unlink(missing_ok=True)
    os.rename(tree, target)


def _run(command: Sequence[str], work: Path) -> Generator[str, None, None]:
    """Runs a command; yields the lines it prints. It ends with us, and everything it started ends with it."""
    environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8"}
    environment |= {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    environment |= {"HOME": str(work / "tmp"), "TMPDIR": str(work / "tmp")}
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        cwd=work,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        with process.stdout as lines:
            yield from (line.rstrip("\n") for line in lines)
        if process.wait() != 0:
            yield f"{shlex.quote(command[0])} ended with exit status {process.returncode}"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _last(said: Sequence[str]) -> str:
    return "; ".join(line.strip() for line in said[-6:] if line.strip())[:1000] or "it said nothing"
