"""``obsspec suite check``: what it prints, and what it refuses."""

from __future__ import annotations

import json

import pytest

from obsspec_gym.cli import main


def test_a_suite_is_checked_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["suite", "check", "basics", "--count", "2", "--json"]) == 0
    out, err = capsys.readouterr()
    result = json.loads(out.splitlines()[-1])
    assert (result["suite"], result["sandbox"], result["tasks"]) == ("basics", "bubblewrap", 2)
    assert (result["unsolved_before"], result["graded"], result["accepted"]) == (2, 2, 2)
    assert [done["task_id"] for done in result["checks"]] == ["basics/tests/0", "basics/build/1"]
    assert "basics/build/1  before 0, after 1" in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nope"], "unknown suite 'nope'"),
        (["harbor:/nowhere"], "expected a directory of Harbor tasks"),
        (["agentbench:/nowhere"], "expected a file of JSON lines"),
        (["basics", "--sandbox", "vm"], "sandbox must be one of"),
    ],
)
def test_what_cannot_be_checked_is_refused(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["suite", "check", *arguments]) == 2
    assert sentence in capsys.readouterr().err
