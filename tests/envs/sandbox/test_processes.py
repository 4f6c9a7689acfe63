"""Finding processes by their place in the tree."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from obsspec_gym.envs.sandbox.processes import descendants, family, send_signal, start_time

TREE = "(sleep 60; :) & (bash -c 'sleep 60; :'; :) & bash -c 'bash -c \"sleep 60; :\" & sleep 60; :' & wait"
TREE_SIZE = 9


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_family_names_parents_before_their_children() -> None:
    with subprocess.Popen(["bash", "-c", TREE]) as root:
        try:
            deadline = time.monotonic() + 20
            while len(found := family(root.pid)) < TREE_SIZE and time.monotonic() < deadline:
                time.sleep(0.02)
            assert len(found) == len(set(found)) == TREE_SIZE
            assert set(found) == descendants(root.pid)
            before = {root.pid}
            for pid in found:
                assert parent(pid) in before
                before.add(pid)
        finally:
            send_signal([root.pid, *family(root.pid)], signal.SIGKILL)


def test_family_of_nobody() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    assert family(child.pid) == []
    assert os.getpid() not in family(os.getpid())


def test_a_process_is_known_by_when_it_started_until_it_has_ended() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        began = start_time(child.pid)
        assert began is not None
        assert began >= (start_time(os.getpid()) or 0)
        assert start_time(child.pid) == began
        child.kill()
        while start_time(child.pid) is not None:  # a zombie has ended, whether or not anybody knows
            time.sleep(0.01)
    assert start_time(child.pid) is None
