"""Three streams over one connection: however frames are cut, and no descriptor left behind."""

from __future__ import annotations

import os
import socket
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from obsspec_gym.envs.sandbox.framed_pipes import FramedPipes
from obsspec_gym.errors import SandboxError


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def frame(stream: int, data: bytes) -> bytes:
    return bytes([stream, 0, 0, 0]) + len(data).to_bytes(4, "big") + data


@given(
    st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=20)), max_size=8),
    st.lists(st.integers(1, 7), min_size=1),
)
@settings(max_examples=50)
def test_streams_come_out_however_they_are_cut(frames: list[tuple[int, bytes]], cuts: list[int]) -> None:
    before = descriptors()
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    pipes = FramedPipes(ours)
    said: dict[int, bytes] = {1: b"", 2: b""}
    with theirs:
        rest, at = b"".join(frame(*each) for each in frames), 0
        while rest:
            size = cuts[at % len(cuts)]
            theirs.sendall(rest[:size])
            rest, at = rest[size:], at + 1
            for stream, data in zip((1, 2), pipes.receive(()), strict=True):
                said[stream] += data
    assert pipes.ended
    pipes.close()
    pipes.close()
    assert said == {n: b"".join(data for stream, data in frames if stream == n) for n in (1, 2)}
    assert descriptors() == before


@pytest.mark.parametrize("name", ["eventfd", "dup"])
def test_where_descriptors_run_out_none_is_left_behind(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = descriptors()
    ours, theirs = socket.socketpair()

    def refuse(*_: int) -> int:
        raise OSError(24, "Too many open files")

    with theirs, monkeypatch.context() as patch:
        patch.setattr(os, name, refuse)
        with pytest.raises(OSError, match="Too many open files"):
            FramedPipes(ours)
    assert descriptors() == before


def test_nobody_is_waited_for_beyond_the_deadline() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    pipes = FramedPipes(ours)
    began = time.monotonic()
    with theirs, pytest.raises(SandboxError, match="does not answer"):
        pipes.read(began + 0.2)
    with pytest.raises(SandboxError, match="gone"):
        pipes.read(began + 1000.0)
    assert 0.2 <= time.monotonic() - began < 60.0
    pipes.close()
