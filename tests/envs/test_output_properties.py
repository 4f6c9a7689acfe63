"""Whatever bytes a command prints, however they arrive: one observation, valid, with true numbers."""

from __future__ import annotations

import itertools
import re

from hypothesis import example, given, settings
from hypothesis import strategies as st

from obsspec_gym.envs.observation import ObservationFormat
from obsspec_gym.envs.sandbox.base import CommandResult
from obsspec_gym.envs.sandbox.buffer import OutputBuffer

ELIDED = re.compile(r"\[\.\.\. (\d+) bytes elided \.\.\.\]\n")
HOME = "/home/agent"

texts = st.text(st.sampled_from("ab\n\r é€😀\x1b\ufffd"), max_size=80)
outputs = st.one_of(
    st.binary(max_size=80),
    texts.map(str.encode),
    st.lists(st.sampled_from([b"a", b"\n", b"\xc3", b"\xa9", b"\xe2\x82", b"\xac", b"\xf0\x9f", b"\xff", b"\x96"])).map(
        b"".join
    ),
)
cuts = st.lists(st.integers(0, 200), max_size=12)
limits = st.integers(4, 12).map(lambda half: 2 * half)


def pieces(output: bytes, at: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(output) + 1) for cut in at), len(output)]
    return [output[a:b] for a, b in itertools.pairwise(edges)]


def observation(chunks: list[bytes], kept: int, limit: int) -> str:
    """What is shown of an output of which a sandbox keeps ``kept`` bytes."""
    buffer = OutputBuffer(kept)
    for chunk in chunks:
        buffer.feed(chunk)
    return ObservationFormat(limit).format(CommandResult(bytes(buffer), buffer.total, 0, HOME, 0.0), HOME, 30.0)


@given(outputs, cuts, limits, limits)
def test_where_chunks_are_cut_never_shows(output: bytes, at: list[int], kept: int, limit: int) -> None:
    shown = observation(pieces(output, at), kept, limit)
    assert shown == observation([output], kept, limit)
    assert shown.encode().decode() == shown
    assert shown.endswith("[exit 0] ~")


@given(texts.filter(lambda text: "\ufffd" not in text), limits, limits)
@example("😀" * 9 + "a", 8, 24)
@example("😀" * 9 + "a", 8, 8)
@example("a" + "😀" * 9, 24, 8)
def test_no_character_is_split_and_every_byte_is_counted(text: str, kept: int, limit: int) -> None:
    output = text.encode()
    shown = observation([output], kept, limit).removesuffix("[exit 0] ~")
    if len(output) <= min(kept, limit):
        assert shown in (text, text + "\n")
        return
    assert "\ufffd" not in shown
    head, number, tail = ELIDED.split(shown)
    # A newline may have been put at the end of each.
    ends = [(h, t) for h in (head, head.removesuffix("\n")) for t in (tail, tail.removesuffix("\n"))]
    assert any(
        text.startswith(h) and text.endswith(t) and len((h + t).encode()) + int(number) == len(output) for h, t in ends
    )
    assert all(len(end.removesuffix("\n").encode()) <= min(kept, limit) // 2 for end in (head, tail))


@given(outputs, limits, limits)
def test_of_arbitrary_bytes_every_one_is_counted(output: bytes, kept: int, limit: int) -> None:
    shown = observation([output], kept, limit)
    elided = ELIDED.search(shown)
    if len(output) <= min(kept, limit):
        assert elided is None
        return
    assert elided is not None
    # What is left out, and what is shown, which lacks at most the three first bytes of a character on each side.
    left = len(output) - int(elided[1])
    half = min(kept, limit) // 2
    assert 2 * half - 6 <= left <= 2 * half
    head = output[:half].decode("utf-8", "replace").rstrip("\ufffd\n")
    assert shown.startswith(head)


@given(st.lists(st.binary(max_size=30), max_size=8), st.integers(1, 20))
@settings(max_examples=200)
def test_a_buffer_is_the_two_ends(chunks: list[bytes], limit: int) -> None:
    buffer = OutputBuffer(limit)
    for chunk in chunks:
        buffer.feed(chunk)
    whole, half = b"".join(chunks), limit // 2
    assert buffer.total == len(whole)
    assert bytes(buffer) == (whole if len(whole) <= 2 * half else whole[:half] + whole[len(whole) - half :])
