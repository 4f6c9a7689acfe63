"""Whose owner is gone: said only where it is certain. The daemon's side is tested with the Docker tests."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from obsspec_gym.envs.sandbox import reaper
from obsspec_gym.envs.sandbox.reaper import Fate, Owner, leftovers, reap, strangers

INITIAL = "4026531836"


@pytest.fixture
def me() -> Owner:
    return Owner.current()


@pytest.fixture
def child() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process.pid
    process.communicate()


def test_who_lives_is_alive(me: Owner, child: int) -> None:
    assert me.fate() is Fate.ALIVE
    assert replace(me, pid=str(child), started=reaper._started(child)).fate() is Fate.ALIVE


def test_who_has_ended_is_gone_also_where_the_number_is_used_again(me: Owner) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert replace(me, pid=str(process.pid)).fate() is Fate.GONE
    assert replace(me, started="1").fate() is Fate.GONE


def test_whose_files_are_hidden_is_alive(me: Owner, child: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with ``hidepid=2``, for another user's process: nothing is seen in ``/proc``, and no signal may be sent."""

    def refuse(pid: int, signal: int) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    theirs = replace(me, pid=str(child), started=reaper._started(child))
    monkeypatch.setattr(reaper, "_started", lambda pid: "")
    assert theirs.fate() is Fate.ALIVE
    monkeypatch.setattr(os, "kill", refuse)
    assert theirs.fate() is Fate.ALIVE


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user: root can become one")
def test_another_users_process_is_seen_to_live(child: int) -> None:
    """From a process that may not signal it."""
    ask = (
        "import os, sys; from obsspec_gym.envs.sandbox.reaper import Owner; owner = Owner.read(eval(sys.argv[1])); "
        "os.setgroups([]); os.setgid(65534); os.setuid(65534); print(owner.fate())"
    )
    theirs = replace(Owner.current(), pid=str(child), started=reaper._started(child))
    command = [sys.executable, "-c", ask, repr(theirs.labels())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "Fate.ALIVE\n", done.stderr


def test_another_start_is_gone_only_where_the_machine_is_known_to_be_this_one(
    me: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaper, "_namespace", lambda: INITIAL)
    monkeypatch.setattr(reaper, "machine_id", lambda: "this")
    earlier = replace(me, boot="earlier", namespace=INITIAL, machine="this")
    assert earlier.fate() is Fate.GONE
    twin = "a machine of the same name"
    others = {
        twin: replace(earlier, machine="other"),
        "a machine without an id": replace(earlier, machine=""),
        "a clone of another name": replace(earlier, host="elsewhere"),
        "a container with this machine's id": replace(earlier, namespace="1"),
    }
    assert {name: owner.fate() for name, owner in others.items()} == dict.fromkeys(others, Fate.UNKNOWN)
    monkeypatch.setattr(reaper, "machine_id", lambda: "")
    assert replace(earlier, machine="").fate() is Fate.UNKNOWN
    monkeypatch.setattr(reaper, "machine_id", lambda: "this")
    monkeypatch.setattr(reaper, "_namespace", lambda: "1")  # we are a container, whose id may be an image's
    assert replace(earlier, namespace="1").fate() is Fate.UNKNOWN


def test_another_namespace_is_unknown(me: Owner) -> None:
    assert replace(me, namespace="1", started="1").fate() is Fate.UNKNOWN


def test_an_owner_is_read_from_its_labels(me: Owner) -> None:
    assert Owner.read({**me.labels(), "other": "x"}) == me
    assert me.pid == str(os.getpid())


@given(st.dictionaries(st.sampled_from(reaper._LABELS), st.text(max_size=12) | st.just("1")))
def test_labels_of_whatever_kind_name_an_owner_or_none(labels: dict[str, str]) -> None:
    owner = Owner.read(labels)
    assert owner is None or owner.fate() in Fate
    if owner is not None:
        assert set(owner.labels().items()) >= set(labels.items()) - {(name, "") for name in labels}


class Api:
    """A daemon's list of containers."""

    def __init__(self, *owners: Owner) -> None:
        self.there = {str(i): owner.labels() for i, owner in enumerate(owners)}

    def containers(self, **_: Any) -> list[dict[str, Any]]:
        return [{"Id": id_, "Names": [f"/c{id_}"], "Labels": labels} for id_, labels in self.there.items()]

    def remove_container(self, container: str, **_: Any) -> None:
        del self.there[container]


def test_what_nobody_can_tell_about_is_reported_and_left_alone(me: Owner) -> None:
    pytest.importorskip("docker")
    api = Api(me, replace(me, started="1"), replace(me, namespace="1", host="h", pid="7"))
    daemon: Any = SimpleNamespace(api=api)
    assert leftovers(daemon) == ["container c1"]
    assert strangers(daemon) == ["container c2 (process 7 on h)"]
    assert reap(daemon) == ["container c1"]
    assert list(api.there) == ["0", "2"]
