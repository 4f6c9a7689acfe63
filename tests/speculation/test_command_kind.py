"""Kinds of commands: text never raises, and what is not the program is not taken for it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from obsspec_gym.speculation.command_kind import command_kind
from obsspec_gym.types import MalformedCall


@pytest.mark.parametrize(
    ("action", "kind"),
    [
        ("ls -la", "ls"),
        ("/usr/bin/python3 -c 'print(1)'", "python3"),
        ("FOO=1 BAR='x' make -j4", "make"),
        ("sudo -n timeout 5 pytest -q", "pytest"),
        ("(cd src; ls)", "cd"),
        ("submit 42", "submit"),
        ("", "sh"),
        ("X=1", "sh"),
        (MalformedCall("no call"), "malformed"),
        (3, "int"),
        (np.zeros(2), "ndarray"),
        ((1, 2), "tuple"),
    ],
)
def test_kinds(action: object, kind: str) -> None:
    assert command_kind(action) == kind


@given(st.text())
def test_any_text_has_a_kind(command: str) -> None:
    assert 0 < len(command_kind(command)) <= 32
