"""A command under way: where its output is cut changes nothing, and nothing is held back longer than necessary."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from obsspec_gym.envs.execution import Deadline, End, Execution, finish, until_mark
from obsspec_gym.errors import SandboxError

MARK = b"abcabd"
# Bytes of which many begin like the mark.
outputs = st.lists(st.sampled_from([b"a", b"b", b"c", b"d", b"abcab", b"abc", b"\0", b"\xff"])).map(b"".join)


def cut(data: bytes, at: list[int]) -> list[bytes]:
    """The pieces of ``data`` when it is cut at these places, wherever they are; some may be empty."""
    places = [0, *sorted(place % (len(data) + 1) for place in at), len(data)]
    return [data[begin:end] for begin, end in pairwise(places)]


def collect(steps: Generator[bytes, None, bytes | None]) -> tuple[list[bytes], bytes | None]:
    passed: list[bytes] = []

    def watch() -> Generator[bytes, None, bytes | None]:
        while True:
            try:
                piece = next(steps)
            except StopIteration as end:
                value: bytes | None = end.value
                return value
            passed.append(piece)
            yield piece

    return passed, finish(watch())


@given(before=outputs, after=outputs, at=st.lists(st.integers(0, 100)))
def test_the_mark_is_found_wherever_pieces_are_cut(before: bytes, after: bytes, at: list[int]) -> None:
    expected = (before + MARK).index(MARK)  # the output may end in a beginning of the mark, or hold all of it
    whole = before + MARK + after
    passed, late = collect(until_mark(cut(whole, at), MARK))
    assert b"".join(passed) == whole[:expected]
    assert late is not None
    assert whole[expected + len(MARK) :].startswith(late)


@given(data=outputs.filter(lambda data: MARK not in data), at=st.lists(st.integers(0, 100)))
def test_without_a_mark_everything_is_passed_on(data: bytes, at: list[int]) -> None:
    passed, late = collect(until_mark(cut(data, at), MARK))
    assert (b"".join(passed), late) == (data, None)


@given(data=outputs.filter(lambda data: MARK not in data))
def test_no_more_is_held_back_than_may_begin_the_mark(data: bytes) -> None:
    passed, _ = collect(until_mark([data, b""], MARK))
    held = data[len(passed[0]) :]
    longest = max(n for n in range(len(MARK)) if data.endswith(MARK[:n]))
    assert held == MARK[:longest]


def steps(pieces: list[bytes]) -> Generator[bytes, None, End]:
    yield from pieces
    return End(0, "/", timed_out=False)


@given(data=st.binary(max_size=60), at=st.lists(st.integers(0, 100)), limit=st.integers(2, 40))
def test_results_do_not_depend_on_pieces(data: bytes, at: list[int], limit: int) -> None:
    execution = Execution(steps(cut(data, at)), Deadline(1.0), limit)
    pieces = list(execution)
    assert b"".join(pieces) == data
    assert b"" not in pieces
    assert execution.finish() == Execution(steps([data]), Deadline(1.0), limit).finish()
    assert execution.finish().output_bytes == len(data)


def test_after_an_interrupt_nobody_knows() -> None:
    def interrupted() -> Iterator[bytes]:
        yield b"a"
        raise KeyboardInterrupt

    def broken() -> Generator[bytes, None, End]:
        yield from interrupted()
        return End(0, "/", timed_out=False)

    execution = Execution(broken(), Deadline(1.0), 10)
    assert next(execution) == b"a"
    with pytest.raises(KeyboardInterrupt):
        execution.finish()
    with pytest.raises(SandboxError, match="interrupted"):
        execution.finish()


def test_deadlines_are_brought_forward_only() -> None:
    deadline = Deadline(60.0)
    assert deadline.left() > 50.0
    deadline.expire()
    left = deadline.left()
    assert left <= 0.0
    deadline.expire()
    assert deadline.left() <= left
