"""Makes the image that the Docker tests run in, from this machine's own programs: no registry, a few seconds.

``python -m tests.docker.image`` waits for the daemon of ``DOCKER_HOST``, makes the image there and prints its name.
"""

from __future__ import annotations

import glob
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator

import docker

NAME = "obsspec-test:latest"
NO_DAEMON = 3
"""Exit status where no daemon answers."""

_PATH = "/usr/bin:/bin:/usr/sbin:/sbin:/usr/local/bin:" + os.path.dirname(os.path.realpath(sys.executable))

_PROGRAMS = """
awk base64 basename bash cat chmod chown chroot cksum cmp comm cp cut date dd df diff dirname du echo env expand expr
false find fold getent git grep groups gzip head hostname id install join kill link ln ls md5sum mkdir mkfifo mknod
mktemp more mount mv nice nl nohup nproc od paste pgrep pkill printenv printf prlimit ps pwd python3 readlink realpath
rm rmdir script sed seq setpriv setsid sh sha256sum shuf sleep sort split stat stdbuf stty sync tac tail tar taskset
tee test timeout touch tr true truncate tsort tty uname uniq unlink unshare wc whoami xargs yes
"""
_LEFT_OUT = re.compile(
    r"/(test|tests|idlelib|site-packages|dist-packages|__pycache__|ensurepip|lib2to3|tkinter|config-.*)(/|$)"
)
_FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/bash\nagent:x:1000:1000:agent:/home/agent:/bin/bash\n",
    "etc/group": "root:x:0:\nagent:x:1000:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
_DIRECTORIES = {
    "tmp": 0o1777,
    "root": 0o700,
    "home": 0o755,
    "home/agent": 0o755,
    "proc": 0o755,
    "sys": 0o755,
    "dev": 0o755,
}


def build() -> bytes:
    """The image's file system, as a tar."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", dereference=True) as tar:
        for link in ("bin", "sbin", "lib", "lib32", "lib64"):
            if os.path.islink(f"/{link}"):
                _add(tar, link, target=os.readlink(f"/{link}"))
        for path, mode in _DIRECTORIES.items():
            _add(tar, path, mode=mode)
        for path, text in _FILES.items():
            _add(tar, path, data=text.encode())
        programs = {name: found for name in _PROGRAMS.split() if (found := shutil.which(name, path=_PATH))}
        real = {os.path.realpath(path) for path in programs.values()}
        locale = set(glob.glob("/usr/lib/locale/C.*/**", recursive=True))
        modules = {path for path in locale if os.path.isfile(path)} | set(_standard_library(programs["python3"]))
        binaries = real | {path for path in modules if path.endswith(".so")}
        # One path may be named in two ways where a directory is a link.
        paths = binaries | modules | _libraries(binaries)
        for path in sorted({os.path.join(os.path.realpath(os.path.dirname(p)), os.path.basename(p)) for p in paths}):
            tar.add(path)
        for name, path in programs.items():
            if os.path.realpath(path) != f"/usr/bin/{name}":
                _add(tar, f"usr/bin/{name}", target=os.path.realpath(path))
    return archive.getvalue()


def _add(tar: tarfile.TarFile, name: str, *, mode: int = 0o755, data: bytes | None = None, target: str = "") -> None:
    entry = tarfile.TarInfo(name)
    entry.mode = 0o644 if data is not None else mode
    entry.type = tarfile.SYMTYPE if target else tarfile.DIRTYPE if data is None else tarfile.REGTYPE
    entry.linkname = target
    entry.size = len(data or b"")
    tar.addfile(entry, io.BytesIO(data or b""))


def _standard_library(python: str) -> Iterator[str]:
    ask = [python, "-c", "import sysconfig; print(sysconfig.get_path('stdlib'))"]
    root = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
    for directory, _, names in os.walk(root):
        if not _LEFT_OUT.search(directory.removeprefix(root)):
            yield from (f"{directory}/{name}" for name in names if not name.startswith("_tkinter"))


def _libraries(programs: set[str]) -> set[str]:
    """The shared libraries and the loader of all programs."""
    done = subprocess.run(["ldd", *sorted(programs)], capture_output=True, text=True, check=False)
    return set(re.findall(r"(?:=> |^\s+)(/\S+) \(0x", done.stdout, re.MULTILINE))


def main() -> None:
    """Waits for the daemon, then makes the image."""
    deadline = time.monotonic() + 60.0
    while True:
        try:
            client = docker.APIClient(os.environ["DOCKER_HOST"], version="auto", timeout=60)
            break
        except docker.errors.DockerException:
            if time.monotonic() > deadline:
                sys.exit(NO_DAEMON)
            time.sleep(0.1)
    try:
        client.import_image_from_data(build(), repository=NAME.partition(":")[0], tag="latest")
    finally:
        client.close()
    print(NAME)


if __name__ == "__main__":
    main()
