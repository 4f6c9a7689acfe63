"""The doctor knows the daemon, and cleans up on it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from obsspec_gym.cli import main
from obsspec_gym.envs.sandbox.daemon import Daemon
from obsspec_gym.envs.sandbox.docker_image import choose_image
from obsspec_gym.envs.sandbox.reaper import Owner


def test_it_says_what_was_left_and_removes_it(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    dead = replace(Owner.current(), started="1")
    made = daemon.api.create_container(choose_image(daemon, None), ["true"], labels=dead.labels(), name="obsspec-left")
    assert main(["doctor", "--json"]) == 0
    findings = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert findings["docker_sandbox"]["ok"], findings["docker_sandbox"]
    assert "does not bound the disk of machines of a task's own" in findings["docker_sandbox"]["detail"]
    assert "container obsspec-left" in findings["docker_leftovers"]["detail"]
    assert findings["docker_leftovers"]["fix"] == "obsspec doctor --clean"
    assert main(["doctor", "--clean", "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "removed container obsspec-left" in lines
    assert json.loads(lines[-1])["docker_leftovers"]["ok"]
    assert made["Id"] not in [each["Id"] for each in daemon.api.containers(all=True)]
