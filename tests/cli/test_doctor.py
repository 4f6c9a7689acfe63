"""The doctor finds what is there, and tells how to get the rest."""

from __future__ import annotations

import json

import pytest

from obsspec_gym.cli import doctor, main


def test_it_says_what_is_there(capsys):
    assert main(["doctor", "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    findings = json.loads(lines[-1])
    assert findings["python"]["ok"]
    assert findings["bubblewrap_sandbox"]["ok"]
    assert findings["frozen_clock"]["ok"] or "gcc" in findings["frozen_clock"]["fix"]
    assert "isolates nothing" in findings["local_sandbox"]["detail"]
    assert "an agent that is root can replace what its verifier runs" in findings["root_agents"]["detail"]
    assert findings["torch"]["ok"]
    assert findings["torch"]["detail"].startswith("2.")
    assert all(finding["ok"] or finding["fix"] or name == "gpu" for name, finding in findings.items())
    assert any(line.startswith("ok") and "bubblewrap sandbox" in line for line in lines)


def test_what_is_missing_comes_with_the_command_that_adds_it(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "bubblewrap_available", lambda: "this machine refuses namespaces")
    monkeypatch.setattr(doctor, "SHIPPED", tmp_path)
    monkeypatch.setattr(doctor, "_PROGRAMS", ("bash", "no-such-program"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing.sock")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    findings = doctor.report(doctor.examine())
    assert "sysctl" in findings["bubblewrap_sandbox"]["fix"]
    assert findings["programs"]["fix"] == "apt-get install -y no-such-program"
    assert findings["docker_sandbox"]["fix"].startswith("apt-get install -y docker.io")
    assert findings["shipped_pair"] == {
        "name": "shipped_pair",
        "ok": False,
        "detail": "this installation comes without its policy",
        "fix": "make pair",
    }
    printed = capsys.readouterr().out
    assert "missing" in printed
    assert "make pair" in printed


def test_limits_that_cannot_be_had_are_told(monkeypatch):
    monkeypatch.setattr(doctor, "control_groups_available", lambda: "there are none")
    monkeypatch.setattr(doctor, "bubblewrap_available", lambda: None)
    monkeypatch.setattr(doctor, "sandbox_uid", lambda: 0)
    finding = doctor._control_groups()
    assert not finding.ok
    assert finding.detail.startswith("nothing bounds the memory of a whole bubblewrap sandbox")
    assert finding.detail.endswith(": there are none")
    assert "only control groups bound the number of processes" in doctor._bubblewrap().detail


def test_a_package_that_is_not_installed():
    finding = doctor._package("no-such-package-at-all", "train")
    assert (finding.ok, finding.fix) == (False, "pip install 'obsspec_gym[train]'")


def test_docker_is_spoken_of_once(monkeypatch, tmp_path):
    """With a daemon that is not there: what is missing first, and the command that adds it."""
    pytest.importorskip("docker")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing.sock")
    assert [finding.name for finding in doctor.examine() if "docker" in finding.name] == ["docker_sandbox"]
