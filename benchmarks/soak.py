"""Many sandboxes at once: do they all start, does every command get its own result, is anything left of a killed owner?

    python benchmarks/soak.py --sandboxes 64 --commands 10000

Prints one JSON object; exits 1 if a result was paired with another's command, or something was left.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from obsspec_gym.envs.sandbox import Sandbox, make_sandbox
from obsspec_gym.envs.sandbox.processes import descendants, start_time

_GONE_SECONDS = 30.0


def main() -> int:
    """Reads the arguments, runs both halves, prints what they found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", default="bubblewrap", choices=["bubblewrap", "local", "docker"])
    parser.add_argument("--sandboxes", type=int, default=64)
    parser.add_argument("--commands", type=int, default=10_000, help="over all sandboxes")
    parser.add_argument("--total-mib", type=int, help="bound each one's memory by a control group (bubblewrap)")
    parser.add_argument("--own", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    options = {} if arguments.total_mib is None else {"total_mib": arguments.total_mib}
    warnings.simplefilter("ignore")
    if arguments.own:
        return own(arguments.kind, arguments.sandboxes, options)
    found = {
        "kind": arguments.kind,
        "sandboxes": arguments.sandboxes,
        "cpus": os.cpu_count(),
        **soak(arguments.kind, arguments.sandboxes, arguments.commands, options),
        **kill_owner(arguments.kind, arguments.sandboxes, options),
    }
    print(json.dumps(found, indent=2))
    return int(any(found[name] for name in ("mismatched", "left_processes", "left_supervisors", "left_files")))


def soak(kind: str, count: int, commands: int, options: dict[str, Any]) -> dict[str, Any]:
    """Starts all at once, a thread each, and gives each its share of commands whose results nobody else can have."""
    sandboxes = [make_sandbox(kind, **options) for _ in range(count)]
    try:
        with ThreadPoolExecutor(count) as pool:
            began = time.perf_counter()
            list(pool.map(lambda sandbox: sandbox.start(), sandboxes))
            started = time.perf_counter()
            shares = [commands // count + (i < commands % count) for i in range(count)]
            mismatched = list(pool.map(drive, range(count), sandboxes, shares))
            ended = time.perf_counter()
    finally:
        for sandbox in sandboxes:
            sandbox.close()
    return {
        "start_seconds": round(started - began, 2),
        "commands": commands,
        "commands_per_second": round(commands / (ended - started), 1),
        "mismatched": sum(mismatched),
        "close_seconds": round(time.perf_counter() - ended, 2),
    }


def drive(number: int, sandbox: Sandbox, commands: int) -> int:
    """Runs commands in one sandbox; how many results were not what they must be."""
    sandbox.run(f"me={number}; count=0")
    wrong = 0
    for i in range(commands):
        token = secrets.token_hex(8)
        # Every kind of end: by a builtin, by a program, with a failure, with output that comes late.
        match i % 4:
            case 0:
                command, output, status = f"echo $me $((count++)) {token}", f"{number} {i} {token}\n", 0
            case 1:
                command, output, status = f"let count++; /bin/echo {token}; exec 2>&1", f"{token}\n", 0
            case 2:
                command, output, status = f"let count++; printf {token}; (exit {i % 256})", token, i % 256
            case _:
                command, output, status = f"let count++; (sleep 0.01; echo {token}) & wait; :", f"{token}\n", 0
        result = sandbox.run(command, 60.0)
        wrong += (result.output.decode(), result.exit_code) != (output, status)
    return wrong


def own(kind: str, count: int, options: dict[str, Any]) -> int:
    """What the process does that is to be killed: it has sandboxes, each busy, and says so."""
    token = sys.stdin.readline().strip()
    sandboxes = [make_sandbox(kind, **options) for _ in range(count)]
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(lambda sandbox: sandbox.start(), sandboxes))
        list(pool.map(lambda s: s.run(f"sleep {token} & (setsid nohup sleep {token} >/dev/null 2>&1 &)"), sandboxes))
        running = [pool.submit(sandbox.run, f"sleep {token}", 900.0) for sandbox in sandboxes]
        # Supervisors with all that starts and surrounds them; for containers nothing, they belong to the daemon.
        print(json.dumps({pid: start_time(pid) for pid in descendants(os.getpid())}), flush=True)
        for future in running:
            future.result()
    return 0


def kill_owner(kind: str, count: int, options: dict[str, Any]) -> dict[str, Any]:
    """Kills a process that has sandboxes; what is left of them a little later."""
    token = f"{secrets.randbelow(10**6)}.{os.getpid()}"
    with tempfile.TemporaryDirectory() as directory:
        words = [sys.executable, __file__, "--own", "--kind", kind, "--sandboxes", str(count)]
        words += [f"--total-mib={options['total_mib']}"] if options else []
        environment = os.environ | {"TMPDIR": directory}
        with subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        ) as owner:
            assert owner.stdin is not None
            assert owner.stdout is not None
            owner.stdin.write(f"{token}\n")
            owner.stdin.flush()
            below: dict[str, int] = json.loads(owner.stdout.readline() or "{}")
            before = len(processes(token))
            owner.send_signal(signal.SIGKILL)
        assert before, "the owner did not get ready"
        began = time.perf_counter()
        while leftovers(token, below, directory, owner.pid) and time.perf_counter() - began < _GONE_SECONDS:
            time.sleep(0.05)
        return {
            "owner_killed_with_processes": before,
            "owner_killed_with_supervisors": len(below),
            "gone_after_seconds": round(time.perf_counter() - began, 2),
            "left_processes": len(processes(token)),
            "left_supervisors": len(running(below)),
            "left_files": files(directory, owner.pid),
        }


def leftovers(token: str, below: Mapping[str, int], directory: str, owner: int) -> bool:
    """Whether anything is left of a killed owner."""
    return bool(processes(token) or running(below) or files(directory, owner))


def running(processes: Mapping[str, int]) -> list[str]:
    """Those that still run, of process numbers with when each started."""
    return [pid for pid, started in processes.items() if start_time(int(pid)) == started]


def processes(token: str) -> list[int]:
    """Every process on the machine that has the token on its command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if token.encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def files(directory: str, owner: int) -> list[str]:
    """Temporary files, and control groups of an owner."""
    groups = [str(path) for path in Path("/sys/fs/cgroup").glob(f"**/obsspec-{owner}-*")]
    return sorted(os.listdir(directory)) + groups


if __name__ == "__main__":
    raise SystemExit(main())
