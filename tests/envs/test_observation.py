from __future__ import annotations

import itertools
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from obsspec_gym.envs.observation import ObservationFormat
from obsspec_gym.envs.sandbox.base import CommandResult
from obsspec_gym.errors import InvalidArgumentError

HOME = "/home/agent"


def result(output: bytes = b"", exit_code: int | None = 0, cwd: str = HOME, **how: bool) -> CommandResult:
    return CommandResult(output, len(output), exit_code, cwd, 0.0, **how)


def formatted(output: bytes, limit: int = 10_000) -> str:
    return ObservationFormat(limit).format(result(output), HOME, 30.0)


# Text heavy in multi-byte characters, and bytes heavy in pieces of them.
texts = st.text(st.sampled_from("ab\n é€😀\r\x00\x1b"), max_size=60)
pieces = st.lists(st.sampled_from([b"a", b"\n", b"\xc3", b"\xa9", b"\xe2\x82", b"\xac", b"\xf0\x9f", b"\xff", b"\x96"]))
raw = st.one_of(st.binary(max_size=60), texts.map(str.encode), pieces.map(b"".join))


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (result(), "[exit 0] ~"),
        (result(b"hello"), "hello\n[exit 0] ~"),
        (result(b"hello\n"), "hello\n[exit 0] ~"),
        (result(b"\n"), "\n[exit 0] ~"),
        (result(b"a\n\n"), "a\n\n[exit 0] ~"),
        (result(exit_code=1, cwd=HOME + "/src"), "[exit 1] ~/src"),
        (result(cwd="/home/agents"), "[exit 0] /home/agents"),
        (result(cwd="/"), "[exit 0] /"),
        (result(exit_code=None, timed_out=True), "[timeout after 30 s] ~"),
        (result(exit_code=None, timed_out=True, restarted=True), "[timeout after 30 s, shell restarted] ~"),
        (result(exit_code=1, restarted=True), "[exit 1, shell restarted] ~"),
        (result(b"\x96 caf\xc3\xa9 \xc3"), "\ufffd café \ufffd\n[exit 0] ~"),
        (result(cwd=HOME + "/a\nb"), "[exit 0] ~/a\\nb"),
        (result(cwd=HOME + "/\udc96"), "[exit 0] ~/\ufffd"),
    ],
)
def test_version_1(outcome: CommandResult, expected: str) -> None:
    assert ObservationFormat().format(outcome, HOME, 30.0) == expected
    assert ObservationFormat.version == 1


def test_a_directory_without_end_is_cut() -> None:
    shown = ObservationFormat().format(result(cwd=HOME + "/a" * 40_000), HOME, 30.0)
    assert shown == "[exit 0] ~" + "/a" * 499 + "/[...]" + "/a" * 500
    assert ObservationFormat().format(result(cwd="/" + "a" * 4_095), HOME, 30.0) == "[exit 0] /" + "a" * 4_095
    assert ObservationFormat().may_become("", shown)


def test_fractions_of_a_second_are_shown() -> None:
    assert ObservationFormat().format(result(exit_code=None), HOME, 0.5) == "[timeout after 0.5 s] ~"


def test_long_outputs_keep_both_ends() -> None:
    assert formatted(b"a" * 10_000) == "a" * 10_000 + "\n[exit 0] ~"
    assert formatted(b"a" * 5_000 + b"b" + b"c" * 5_000) == (
        "a" * 5_000 + "\n[... 1 bytes elided ...]\n" + "c" * 5_000 + "\n[exit 0] ~"
    )


def test_a_limit_without_room_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="at least 8 bytes, got 7"):
        ObservationFormat(7)


@given(raw, st.integers(8, 20), st.integers(0, 10_000))
def test_truncation_counts_every_byte(output: bytes, limit: int, more: int) -> None:
    text = ObservationFormat(limit).format(CommandResult(output, len(output) + more, 0, HOME, 0), HOME, 30)
    elision = re.search(r"^\[\.\.\. (\d+) bytes elided \.\.\.\]\n", text, re.MULTILINE)
    if len(output) + more <= limit and not more:
        assert elision is None
        return
    assert elision is not None
    # The ends are recoverable from the original: head and tail bytes add up with the number.
    half = min(limit, len(output)) // 2
    shown = len(output) + more - int(elision[1])
    assert 2 * half - 6 <= shown <= 2 * half


@given(texts, st.integers(8, 20))
def test_truncation_never_splits_a_character(text: str, limit: int) -> None:
    output = text.encode()
    observation = formatted(output, limit)
    assert "\ufffd" not in observation
    if len(output) > limit:
        body = observation.removesuffix("[exit 0] ~")
        head, elided, tail = re.split(r"\[\.\.\. (\d+) bytes elided \.\.\.\]\n", body)
        kept = [
            (h, t)
            for h in {head, head.removesuffix("\n")}
            for t in {tail, tail.removesuffix("\n")}
            if text.startswith(h) and text.endswith(t) and len((h + t).encode()) + int(elided) == len(output)
        ]
        assert kept
        assert all(len(end.encode()) <= limit // 2 for end in kept[0])


@given(raw, st.lists(st.integers(0, 60)))
def test_chunks_never_change_the_text(output: bytes, cuts: list[int]) -> None:
    decoder = ObservationFormat.decoder()
    edges = [0, *sorted(cut % (len(output) + 1) for cut in cuts), len(output)]
    text = "".join(decoder.decode(output[a:b]) for a, b in itertools.pairwise(edges)) + decoder.decode(b"", True)
    assert text == output.decode("utf-8", "replace")


@given(st.binary(max_size=300), st.integers(8, 40))
def test_arbitrary_bytes_give_valid_unicode_and_a_status_line(output: bytes, limit: int) -> None:
    observation = formatted(output, limit)
    assert observation.encode("utf-8").decode("utf-8") == observation
    assert observation.endswith("[exit 0] ~")
    assert observation == formatted(output, limit)


@given(raw, st.integers(8, 20))
def test_what_happens_was_always_possible(output: bytes, limit: int) -> None:
    layout = ObservationFormat(limit)
    observation = formatted(output, limit)
    decoder = layout.decoder()
    partial = ""
    assert layout.may_become("", observation)
    for byte in output:
        partial += decoder.decode(bytes([byte]))
        assert layout.may_become(partial, observation)
    assert layout.may_become(partial + decoder.decode(b"", True), observation)


def every_text(size: int) -> list[list[str]]:
    """Every text over a small alphabet with characters of all lengths, by its number of bytes."""
    by_size = [[""]]
    for total in range(1, size + 1):
        by_size.append(
            [text + c for c in "a\né€😀" if len(c.encode()) <= total for text in by_size[total - len(c.encode())]]
        )
    return by_size


def test_exactly_what_is_possible_is_possible() -> None:
    """Against every output of up to twelve bytes: no false alarm and no false hope."""
    by_size = every_text(12)
    possible: dict[str, set[str]] = {}
    for output in itertools.chain(*by_size):
        prefixes = possible.setdefault(formatted(output.encode(), 8), set())
        prefixes.update(output[:i] for i in range(len(output) + 1))
    partials = list(itertools.chain(*by_size[:11]))
    observed = sorted(
        {formatted(output.encode(), 8) for output in itertools.chain(*by_size[:11])}
    )  # two newlines may be ours
    rng = random.Random(0)
    for observation in rng.sample(observed, 1_000):
        for partial in [*rng.sample(partials, 50), *possible[observation]]:
            expected = partial in possible[observation]
            assert ObservationFormat(8).may_become(partial, observation) == expected, (partial, observation)


@pytest.mark.parametrize(
    ("partial", "predicted"),
    [
        ("a", "b\n[exit 0] ~"),
        ("a", "[exit 0] ~"),
        ("a\nb", "a\n[exit 0] ~"),
        ("", "no status line"),
        ("", "a\n[exit x] ~"),
        ("", "a" * 10_001 + "\n[exit 0] ~"),
        ("b", "a" * 5_000 + "\n[... 9 bytes elided ...]\n" + "a" * 5_000 + "\n[exit 0] ~"),
        ("a" * 5_001 + "b" * 9, "a" * 5_000 + "\n[... 9 bytes elided ...]\n" + "a" * 5_000 + "\n[exit 0] ~"),
        ("a" * 10_010, "a" * 5_000 + "\n[... 9 bytes elided ...]\n" + "a" * 5_000 + "\n[exit 0] ~"),
        ("", "a" * 5_000 + "\n[... 0 bytes elided ...]\n" + "a" * 5_000 + "\n[exit 0] ~"),
    ],
)
def test_what_can_no_longer_happen(partial: str, predicted: str) -> None:
    assert not ObservationFormat().may_become(partial, predicted)


def test_an_output_that_looks_like_an_elision_is_just_output() -> None:
    text = "x\n[... 7 bytes elided ...]\ny\n"
    assert ObservationFormat().may_become("x\n[...", text + "[exit 0] ~")
    assert not ObservationFormat().may_become("x\n1234567y", text + "[exit 0] ~")


@settings(max_examples=20)
@given(st.integers(10_000, 40_000), st.integers(0, 3))
def test_the_shipped_limit(size: int, shift: int) -> None:
    output = ("a" * shift + "€" * size).encode()
    observation = formatted(output)
    assert "\ufffd" not in observation
    assert ObservationFormat().may_become("a" * shift + "€" * 4_000, observation)
