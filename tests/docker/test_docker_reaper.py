"""What a killed run left is removed; what lives, and what nobody can know about, is not."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from dataclasses import replace

from docker_tools import ours

from obsspec_gym.envs.sandbox.daemon import Daemon
from obsspec_gym.envs.sandbox.docker_image import choose_image
from obsspec_gym.envs.sandbox.reaper import Fate, Owner, leftovers, reap, strangers

SCRIPT = """
import os, signal
from obsspec_gym.envs.sandbox import make_sandbox
sandbox = make_sandbox("docker"); sandbox.start()
sandbox.run("sleep 1000 &")
print("up", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def leave(daemon: Daemon, owner: Owner) -> str:
    """A container that is not running and that ``owner`` made."""
    made = daemon.api.create_container(choose_image(daemon, None), ["true"], labels=owner.labels())
    return str(made["Id"])


def alive(daemon: Daemon, container: str) -> bool:
    return any(each["Id"] == container for each in daemon.api.containers(all=True))


def test_nothing_outlives_a_killed_owner(daemon: Daemon) -> None:
    before = ours(daemon)
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, b"up\n"), done.stderr
    deadline = time.monotonic() + 30.0
    while ours(daemon) != before and time.monotonic() < deadline:
        reap(daemon)
    assert ours(daemon) == before


def test_what_the_dead_left_is_reaped_and_nothing_else(daemon: Daemon) -> None:
    me = Owner.current()
    assert me.fate() is Fate.ALIVE
    dead = {
        "pid": replace(me, pid=str(2**22)),
        "reused number": replace(me, started="1"),
    }
    living = {
        "me": me,
        "another host": replace(me, boot="another", host="elsewhere", started="1"),
        "another namespace": replace(me, namespace="1", started="1"),
        "a machine of the same name": replace(me, boot="another", machine="another", started="1"),
        "a machine without an id": replace(me, boot="another", machine="", started="1"),
    }
    left = {name: leave(daemon, owner) for name, owner in dead.items()}
    kept = {name: leave(daemon, owner) for name, owner in living.items()}
    try:
        assert len(leftovers(daemon)) == 2
        assert len(strangers(daemon)) == 4
        assert len(reap(daemon)) == 2
        assert leftovers(daemon) == []
        assert not any(alive(daemon, container) for container in left.values())
        assert all(alive(daemon, container) for container in kept.values())
    finally:
        for container in kept.values():
            daemon.api.remove_container(container, force=True)
