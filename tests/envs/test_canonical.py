"""Masks: what is volatile goes, everything else stays, and masking again changes nothing."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from obsspec_gym.envs.canonical import canonical
from obsspec_gym.envs.observation import ObservationFormat
from obsspec_gym.envs.sandbox.base import CommandResult
from obsspec_gym.envs.tasks import Task
from obsspec_gym.envs.terminal import TerminalEnv
from obsspec_gym.envs.vector import TerminalVectorEnv

HOME = "/home/agent"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Wed Jan 31 12:34:56 UTC 2024", "<date>"),
        ("Date:   Mon Oct 12 10:00:00 2026 +0000", "Date:   <date>"),
        ("-rw-r--r-- 1 agent agent 4096 Jan  1 12:34 src", "-rw-r--r-- 1 agent agent 4096 <date> src"),
        ("-rw-r--r-- 1 agent agent 4096 Jan 31  2024 src", "-rw-r--r-- 1 agent agent 4096 <date> src"),
        ("2024-01-31 12:34:56.123456789 +0000 x", "<date> x"),
        ("2024-01-31T12:34:56.7Z", "<date>"),
        ("on 2024/01/31.", "on <date>."),
        ("Mon, 12 Oct 2026 10:00:00 GMT", "<date>"),
        (" 18:40:13 up  3:54,  load average: 2.92, 1.89, 1.40", " <time> up  <time>,  load average: <load>"),
        ("1705312345", "<time>"),
        ("1705312345123456789", "<time>"),
        ("1705312345.25", "<time>"),
        ("real\t0m0.003s", "real\t<duration>"),
        ("===== 3 passed in 0.12s =====", "===== 3 passed in <duration> ====="),
        ("took 12 ms, or 1.2e-05 seconds", "took <duration>, or <duration>"),
        ("10 loops, best of 1: 1.2 usec per loop", "10 loops, best of 1: <duration> per loop"),
        ("100 bytes copied, 0.0002 s, 453 MB/s", "100 bytes copied, <duration>, <duration>"),
        ("[main (root-commit) 3f9c1e7] start", "[main (root-commit) <hash>] start"),
        ("index 3f9c1e7..a8b0d41 100644", "index <hash>..<hash> 100644"),
        ("commit 3f9c1e7a8b0d4c1e7a8b0d4c1e7a8b0d4c1e7a8b", "commit <hash>"),
        ("12345678-1234-1234-1234-123456789abc", "<hash>"),
        ("<object object at 0x7f9c1e7a8b0d>", "<object object at <hash>>"),
        ("[1] 12345\n[1]+  12345 Done", "[1] <pid>\n[1]+  <pid> Done"),
        (
            "    3 ?        00:00:00 bash\n   17 pts/0    00:00:00 ps",
            "<pid> ?        <time> bash\n<pid> pts/0    <time> ps",
        ),
        ("bash: line 1:  1234 Killed      sleep 9", "bash: line 1: <pid> Killed      sleep 9"),
        ("pid 12 pid=13 pid: 14 PID 15", "pid <pid> pid=<pid> pid: <pid> PID <pid>"),
        ("/tmp/tmp.Wq3xYz8AbC/x", "/tmp/tmp.<temp>/x"),
        ("/tmp/tmpab12cd_x/foo", "/tmp/tmp<temp>/foo"),
        ("/tmp/ccAbC123.o: undefined", "/tmp/cc<temp>.o: undefined"),
    ],
)
def test_what_is_volatile_is_masked(text: str, expected: str) -> None:
    assert canonical(text) == expected
    assert canonical(expected) == expected


@pytest.mark.parametrize(
    "text",
    [
        "deadbeef", "1234567", "42", "3.14", "version 1.2.3", "a.c:12:34: error: x", "[1/3]", "0x10", "defaced", "12sx",
        "main.c:10: pid", "total 12", "Jan 5", "May 1 be", "port 8080", "127.0.0.1", "<date> <time>", "x=10 y=20",
        "", "\n", "/tmp/tmp", "/tmp/ccc.txt", "3 passed", "size 4096", "exit 1", "feedface cafe", "12:345", "1:2:3",
    ],
)  # fmt: skip
def test_what_is_not_is_left_alone(text: str) -> None:
    assert canonical(text) == text


volatile = st.sampled_from(
    [
        "2024-01-31", "12:34", "12:34:56", "Jan  1 12:34", "Wed Jan 31 12:34:56 UTC 2024", "0m0.003s", "12ms", "5 s",
        "3f9c1e7", "3f9c1e7a8", "0x7f9c1e7a8b0d", "1705312345", "[1] 1234", "pid 12", "   17 pts/0    00:00:00 ps",
        "/tmp/tmp.Ab12Cd34",
        "/tmp/tmpab12cd_x", "/tmp/ccAbC123.o", "bash: line 3: 17 Killed", "load average: 0.1, 0.2", "..", "a8b0d41",
        "<date>", "<", ">", "-", ".", ":", " ", "\n", "x", "7", "é", "T", "Z", "UTC", "Mon", "[", "]", "pid", "tmp",
        "e",
    ]
)  # fmt: skip
mixed = st.lists(volatile, max_size=14).map("".join) | st.lists(volatile, max_size=14).map(" ".join)


@settings(max_examples=400)
@given(mixed)
def test_masking_again_changes_nothing(text: str) -> None:
    assert canonical(canonical(text)) == canonical(text)


def test_what_touches_a_mask_is_not_masked_the_second_time() -> None:
    once = canonical("load average: 0.1, 3f9c1e7a8")
    assert canonical(once) == once == "load average: <load>f9c1e7a8"


@given(st.text(st.characters(exclude_categories=["Nd", "Nl", "No"]), max_size=80))
def test_text_without_figures_is_left_alone(text: str) -> None:
    if "/tmp/" not in text:
        assert canonical(text) == text


@given(mixed, mixed)
def test_lines_are_masked_one_by_one(first: str, second: str) -> None:
    assert canonical(f"{first}\n{second}") == canonical(first) + "\n" + canonical(second)


def formatted(output: bytes, layout: ObservationFormat) -> str:
    return layout.format(CommandResult(output, len(output), 0, HOME, 0.0), HOME, 30.0)


@settings(max_examples=200)
@given(mixed, st.integers(8, 60))
def test_what_happens_was_always_possible(text: str, limit: int) -> None:
    layout = ObservationFormat(limit, canonical=True)
    output = text.encode()
    observation = formatted(output, layout)
    decoder, partial = layout.decoder(), ""
    assert layout.may_become("", observation)
    for byte in output:
        partial += decoder.decode(bytes([byte]))
        assert layout.may_become(partial, observation)


@given(st.binary(max_size=60), st.integers(8, 20))
def test_what_happens_was_always_possible_for_arbitrary_bytes(output: bytes, limit: int) -> None:
    layout = ObservationFormat(limit, canonical=True)
    observation = formatted(output, layout)
    decoder, partial = layout.decoder(), ""
    for byte in output:
        partial += decoder.decode(bytes([byte]))
        assert layout.may_become(partial, observation)


@pytest.mark.parametrize(
    ("partial", "predicted", "possible"),
    [
        ("12:34\n", "<time>\n[exit 0] ~", True),
        ("12:34", "<time>\n[exit 0] ~", True),
        ("12:34", "12:345\n[exit 0] ~", True),
        ("a\n", "b\n[exit 0] ~", False),
        ("12:34\na\n", "<time>\nb\n[exit 0] ~", False),
        ("12:34\n", "12:34\n[exit 0] ~", False),
        ("a\n" * 6_000, "a\n[exit 0] ~", False),
        ("b\n" * 10, "a\n" * 2_500 + "[... 9 bytes elided ...]\n" + "a\n" * 2_500 + "[exit 0] ~", False),
        ("", "no status line", False),
    ],
)
def test_what_can_still_happen(partial: str, predicted: str, possible: bool) -> None:
    assert ObservationFormat(canonical=True).may_become(partial, predicted) is possible


@given(mixed, st.lists(st.integers(0, 200)))
def test_chunks_never_change_the_observation(text: str, cuts: list[int]) -> None:
    layout, output = ObservationFormat(canonical=True), text.encode()
    decoder = layout.decoder()
    edges = [0, *sorted(cut % (len(output) + 1) for cut in cuts), len(output)]
    pieces = [decoder.decode(output[a:b]) for a, b in itertools.pairwise(edges)]
    assert formatted("".join(pieces).encode(), layout) == formatted(output, layout)


def test_the_variant_has_a_version_of_its_own_and_the_first_is_what_it_was() -> None:
    assert (ObservationFormat.version, ObservationFormat().version) == (1, 1)
    assert ObservationFormat(canonical=True).version == 2
    output = b"12:34 3f9c1e7\n"
    assert formatted(output, ObservationFormat()) == "12:34 3f9c1e7\n[exit 0] ~"
    assert formatted(output, ObservationFormat(canonical=True)) == "<time> <hash>\n[exit 0] ~"


def test_both_ends_of_a_long_output_are_masked_and_the_bytes_between_are_not() -> None:
    output = b"12:34\n" + b"a" * 20_000 + b"\n12:34\n"
    observation = formatted(output, ObservationFormat(canonical=True))
    assert observation.startswith("<time>\na")
    assert observation.endswith("\n<time>\n[exit 0] ~")
    assert re.search(r"^\[\.\.\. 10013 bytes elided \.\.\.\]$", observation, re.MULTILINE)


def test_a_made_up_directory_is_masked_in_the_status_line_and_the_timeout_is_not() -> None:
    layout = ObservationFormat(canonical=True)
    result = CommandResult(b"", 0, None, "/tmp/tmp.Wq3xYz8AbC", 30.0, timed_out=True)
    assert layout.format(result, HOME, 30.0) == "[timeout after 30 s] /tmp/tmp.<temp>"
    assert layout.may_become("", "[timeout after 30 s] /tmp/tmp.<temp>")


@pytest.mark.filterwarnings("ignore::obsspec_gym.envs.sandbox.local.NoIsolationWarning")
def test_terminals_show_masked_observations() -> None:
    layout = ObservationFormat(canonical=True)
    with TerminalEnv(task=Task("t", "Do."), sandbox="local", observation_format=layout) as env:
        env.reset()
        assert env.step("date; echo 12:34")[0] == "<date>\n<time>\n[exit 0] ~"
    envs = TerminalVectorEnv(2, task=Task("t", "Do."), sandbox="local", observation_format=layout)
    try:
        envs.reset()
        assert list(envs.step(["date", "date +%s"])[0]) == ["<date>\n[exit 0] ~", "<time>\n[exit 0] ~"]
    finally:
        envs.close()
