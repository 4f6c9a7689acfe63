"""The persistent shell: floods, timeouts, restarts. The table of hostile commands is beside the sandboxes' tests."""

from __future__ import annotations

import pytest

from obsspec_gym.envs.sandbox import Sandbox


@pytest.mark.parametrize("command", ["yes", "cat /dev/zero", "yes & yes >&2"])
def test_a_flood_is_counted_stopped_and_bounded(command: str, sandbox: Sandbox) -> None:
    result = sandbox.run(command, 0.4)
    assert result.timed_out
    assert len(result.output) == 65_536
    assert result.output_bytes > 65_536
    sandbox.run("kill %1; wait")
    assert sandbox.run("echo clean").output.endswith(b"clean\n")


def test_both_ends_of_a_long_output_are_kept(sandbox: Sandbox) -> None:
    result = sandbox.run("seq 100000")
    everything = b"".join(b"%d\n" % i for i in range(1, 100_001))
    assert result.output == everything[:32_768] + everything[-32_768:]
    assert result.output_bytes == len(everything)


def test_late_output_of_a_stopped_command_never_comes(sandbox: Sandbox) -> None:
    stop = sandbox.run("(trap '' INT; sleep 0.6; echo late); echo no", 0.1)
    assert stop.timed_out
    assert sandbox.run("sleep 0.8; echo next").output == b"next\n"


def test_what_ran_before_outlives_a_timeout(sandbox: Sandbox) -> None:
    sandbox.run("env --default-signal=INT sleep 30 & echo $! >pid")
    assert sandbox.run("sleep 20", 0.2).timed_out
    assert sandbox.run("kill -0 $(cat pid) && echo alive").output == b"alive\n"


def test_a_shell_killed_between_commands_is_replaced(sandbox: Sandbox) -> None:
    sandbox.run("(sleep 0.1; kill -9 $$) & v=1; cd /")
    assert sandbox.run("sleep 0.5").restarted or sandbox.run("true").restarted
    result = sandbox.run('echo "[$v]"; pwd')
    assert (result.output, result.restarted) == (b"[]\n/\n", False)


def test_the_same_commands_give_the_same_outputs(sandbox: Sandbox) -> None:
    commands = [
        "env | sort",
        "ls -la",
        "nope",
        "id",
        "locale",
        "date +%Z",
        "python3 -c 'print(hash(\"a\"))'",
        "echo $-",
    ]
    assert sandbox.run("exit").restarted
    first = [sandbox.run(command).output for command in commands]
    assert sandbox.run("exit").restarted
    assert [sandbox.run(command).output for command in commands] == first
