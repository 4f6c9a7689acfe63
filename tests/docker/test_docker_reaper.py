"""What a killed run left is removed; what lives, and what nobody can know about, is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

from docker_tools import ours

from obsspec_gym.envs.sandbox.daemon import Daemon
from obsspec_gym.envs.sandbox.docker_image import choose_image
from obsspec_gym.envs.sandbox.reaper import Owner, leftovers, reap

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
    assert not me.gone()
    dead = {
        "pid": replace(me, pid=str(2**22 + 1)),
        "reused number": replace(me, started="1"),
        "earlier boot": replace(me, boot="another"),
    }
    living = {
        "me": me,
        "another host": replace(me, host="elsewhere", started="1"),
        "another namespace": replace(me, namespace="1", started="1"),
    }
    left = {name: leave(daemon, owner) for name, owner in dead.items()}
    kept = {name: leave(daemon, owner) for name, owner in living.items()}
    volume = daemon.api.create_volume("obsspec-test-volume", labels=dead["pid"].labels())["Name"]
    try:
        assert len(leftovers(daemon)) == 4
        assert f"volume {volume}" in reap(daemon)
        assert leftovers(daemon) == []
        assert not any(alive(daemon, container) for container in left.values())
        assert all(alive(daemon, container) for container in kept.values())
    finally:
        for container in kept.values():
            daemon.api.remove_container(container, force=True)


def test_an_owner_is_read_from_its_labels() -> None:
    me = Owner.current()
    assert Owner.read({**me.labels(), "other": "x"}) == me
    assert me.pid == str(os.getpid())
    assert Owner.read({}) is None
    assert Owner.read({"obsspec_gym.owner": "me"}) is None
