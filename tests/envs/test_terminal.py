import gc
import re
import threading
import time
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from sandbox_kinds import KINDS
from terminal_fakes import FakeSandbox, FakeSuite, UnavailableSandbox

import obsspec_gym  # noqa: F401 - registers the environment
from obsspec_gym.envs.sandbox.bubblewrap import bubblewrap_available
from obsspec_gym.envs.sandbox.local import NoIsolationWarning
from obsspec_gym.envs.tasks.task import Task
from obsspec_gym.envs.terminal import BROKEN, NOT_RUN, SUBMITTED, TerminalEnv
from obsspec_gym.errors import ClosedError, InvalidArgumentError, SandboxUnavailableError
from obsspec_gym.types import MalformedCall


@pytest.fixture(autouse=True)
def _no_sandbox_left():
    FakeSandbox.clear()
    yield
    gc.collect()
    assert FakeSandbox.opened == FakeSandbox.closed


@pytest.fixture
def sandboxes():
    return []


@pytest.fixture
def env(sandboxes):
    def make():
        sandboxes.append(FakeSandbox())
        return sandboxes[-1]

    env = TerminalEnv(FakeSuite(), sandbox=make)
    yield env
    env.close()


@pytest.fixture(params=KINDS)
def real(request):
    """A kind of sandbox that this machine can provide."""
    if request.param == "bubblewrap" and (reason := bubblewrap_available()):
        pytest.skip(reason)
    return request.param


class TestArguments:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"suite": "no such suite"}, "unknown suite.*basics"),
            ({"suite": 3}, "suite must be a suite's name or a Suite, got int"),
            ({"task": "a"}, "task must be a Task or an index of the suite, got str"),
            ({"task": True}, "got bool"),
            ({"task": 9}, "0..3"),
            ({"sandbox": "no such sandbox"}, "no such sandbox"),
            ({"sandbox": 3}, "got int"),
            ({"max_turns": 0}, "max_turns must be an integer >= 1, got 0"),
            ({"max_turns": 1.5}, "max_turns"),
            ({"timeout": 0}, "timeout must be a positive number"),
            ({"timeout": float("nan")}, "timeout must be a positive number"),
            ({"latency": "slow"}, "a latency is 'none', 'remote'"),
            ({"latency": 0.3}, "latency must be 'none', 'remote' .*, got float"),
            ({"start_index": 4}, "start_index"),
            ({"start_index": -1}, "start_index"),
            ({"render_mode": "human"}, "render_mode must be None or 'ansi', got 'human'"),
        ],
    )
    def test_bad_ones_are_told_at_once(self, arguments, message):
        with pytest.raises(InvalidArgumentError, match=message):
            TerminalEnv(**{"suite": FakeSuite(), "sandbox": FakeSandbox} | arguments)
        assert FakeSandbox.opened == 0

    def test_constructor_starts_nothing(self, env, sandboxes):
        assert sandboxes == []

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"taks": 1}, "reset options are 'task' and 'sample', got 'taks'"),
            ({"task": 4}, "0..3"),
            ({"task": "x"}, "got str"),
            ({"sample": -1}, "sample"),
            ({"sample": None}, "sample"),
        ],
    )
    def test_bad_options(self, env, options, message):
        env.reset(options={"task": 1})
        with pytest.raises(InvalidArgumentError, match=message):
            env.reset(options=options)
        assert env.step("echo on")[0] == "on\n[exit 0] ~"  # the episode under way is untouched

    @pytest.mark.parametrize(
        ("action", "message"),
        [
            (3, "a terminal action is a str, got int"),
            (b"ls", "got bytes"),
            (None, "got NoneType"),
            ("ls\0", "NUL, got one at character 2"),
            ("x" * 1_000_001, "at most 1,000,000 bytes, got 1,000,001"),
            ("é" * 500_001, "got 1,000,002"),
            ("echo \ud800", "lone surrogate at character 5"),
        ],
    )
    def test_bad_actions_are_not_sent(self, env, sandboxes, action, message):
        env.reset()
        with pytest.raises(InvalidArgumentError, match=message):
            env.step(action)
        assert sandboxes[0].log == []
        assert env.step("x" * 1_000_000)[-1]["turn"] == 1  # as if it had not been tried


class TestTasks:
    def test_drawn_from_the_seeded_generator(self, env):
        def draw(seed):
            first = env.reset(seed=seed)[1]["task_id"]
            return [first, *(env.reset()[1]["task_id"] for _ in range(9))]

        assert draw(1) == draw(1)
        assert draw(1) != draw(2)
        assert set(draw(1) + draw(2)) == {f"fake/{i}" for i in range(4)}

    def test_drawn_from_the_start_index_on(self):
        env = TerminalEnv(FakeSuite(), sandbox=FakeSandbox, start_index=3)
        assert {env.reset()[1]["task_id"] for _ in range(5)} == {"fake/3"}
        env.close()

    def test_fixed_and_overridden(self):
        env = TerminalEnv(FakeSuite(), task=2, sandbox=FakeSandbox)
        assert env.reset(seed=0) == ("Submit 2.", {"task_id": "fake/2", "sample": 0, "turn": 0})
        assert env.reset(options={"task": np.int64(1), "sample": 5})[1] == {"task_id": "fake/1", "sample": 5, "turn": 0}
        assert env.reset(options={"task": Task("own", "Do.")}) == ("Do.", {"task_id": "own", "sample": 0, "turn": 0})
        assert env.reset()[0] == "Submit 2."
        env.close()

    def test_fresh_sandbox_each_time(self, env, sandboxes):
        env.reset()
        env.reset()
        assert len(sandboxes) == 2
        assert (FakeSandbox.opened, FakeSandbox.closed) == (2, 1)
        assert sandboxes[1].files == {"a": "b"}


class TestSteps:
    def test_command(self, env):
        env.reset(options={"task": 1})
        observation, reward, terminated, truncated, info = env.step("echo hello")
        assert observation == "hello\n[exit 0] ~"
        assert (reward, terminated, truncated) == (0.0, False, False)
        assert info.pop("tool_seconds") > 0
        assert info == {"task_id": "fake/1", "sample": 0, "turn": 1, "cwd": "/home/agent", "timed_out": False,
                        "exit_code": 0}  # fmt: skip

    def test_failing_command_is_an_observation(self, env):
        env.reset()
        observation, reward, terminated, truncated, info = env.step("fail")
        assert (observation, info["exit_code"]) == ("no\n[exit 1] ~", 1)
        assert (reward, terminated, truncated) == (0.0, False, False)

    def test_timeout(self, env):
        env.reset()
        observation, *_, info = env.step("slow")
        assert observation == "so far\n[timeout after 30 s] ~"
        assert info["timed_out"]
        assert "exit_code" not in info

    def test_malformed_call_is_not_run(self, env, sandboxes):
        env.reset()
        observation, reward, terminated, truncated, info = env.step(MalformedCall("submit \0"))
        assert (observation, reward, terminated, truncated) == (NOT_RUN, 0.0, False, False)
        assert (info["turn"], info["tool_seconds"]) == (1, 0.0)
        assert sandboxes[0].log == []

    @pytest.mark.parametrize(
        ("action", "reward"), [("submit 1", 1.0), (" submit\n 1 \n", 1.0), ("submit 2", 0.0), ("submit", 0.0)]
    )
    def test_submit(self, env, action, reward):
        env.reset(options={"task": 1})
        observation, *result, info = env.step(action)
        assert (observation, result) == (SUBMITTED, [reward, True, False])
        assert info["verifier_output"] == "judged\n"
        assert FakeSandbox.closed == 1  # the episode is over: so is its sandbox
        with pytest.raises(ResetNeeded, match="over"):
            env.step("echo")

    @pytest.mark.parametrize("action", ["submitted", "echo submit", "'submit' 1", "submit;", "# submit"])
    def test_not_a_submit(self, env, sandboxes, action):
        env.reset(options={"task": 1})
        assert env.step(action)[2] is False
        assert sandboxes[0].log == [action]

    def test_long_answer_is_wrong_not_broken(self, env, sandboxes):
        env.reset()
        assert env.step("submit " + "é" * 100_000)[1:4] == (0.0, True, False)
        assert len(sandboxes[0].log[-1].encode()) < 101_000

    def test_out_of_turns_is_truncated_and_not_judged(self, env, sandboxes):
        env.reset()
        ends = [env.step("echo")[2:4] for _ in range(3)]
        assert ends == [(False, False)] * 3
        *_, terminated, truncated, info = env.step("echo")
        assert (terminated, truncated, info["reason"]) == (False, True, "no submit within 4 turns")
        assert info["broken"] is False
        assert not any(line.startswith("verify") for line in sandboxes[0].log)

    def test_submit_in_the_last_turn_terminates(self):
        env = TerminalEnv(FakeSuite(), task=1, sandbox=FakeSandbox, max_turns=1)
        env.reset()
        assert env.step("submit 1")[1:4] == (1.0, True, False)
        env.close()

    def test_before_reset(self, env):
        with pytest.raises(ResetNeeded, match="no episode"):
            env.step("echo")

    def test_latency_is_the_profiles_and_tool_time(self, env):
        slow = TerminalEnv(FakeSuite(), task=1, sandbox=FakeSandbox, latency="lognormal:0.02,0")
        slow.reset()
        assert slow.step("echo")[-1]["tool_seconds"] >= 0.02
        slow.close()


class TestBrokenSandboxes:
    def test_truncates_with_the_reason(self, env):
        env.reset()
        observation, reward, terminated, truncated, info = env.step("break")
        assert (observation, reward, terminated, truncated) == (BROKEN, 0.0, False, True)
        assert (info["reason"], info["broken"]) == ("the shell died", True)
        assert env.reset()[1].keys() == {"task_id", "sample", "turn"}
        assert env.step("echo on")[0] == "on\n[exit 0] ~"

    def test_an_interrupted_step_leaves_no_shell_to_go_on_with(self, env):
        env.reset()
        with pytest.raises(KeyboardInterrupt):
            env.step("interrupt")
        observation, *_, truncated, info = env.step("echo on")
        assert (observation, truncated, info["reason"]) == (BROKEN, True, "a step was interrupted")

    def test_in_the_verifier(self, env):
        env.reset(options={"task": Task("t", "", verifier="break")})
        assert env.step("submit")[:4] == (BROKEN, 0.0, False, True)

    @pytest.mark.parametrize(
        ("task", "reason"),
        [
            (Task("t", "Do.", setup="break"), "the shell died"),
            (Task("t", "Do.", setup="fail"), r"setup failed \(exit status 1\): task t: no"),
            (Task("t", "Do.", setup="slow"), r"setup failed \(it took too long\): task t: so far"),
        ],
    )
    def test_in_reset_truncates_the_first_step(self, env, task, reason):
        observation, info = env.reset(options={"task": task})
        assert observation == "Do."
        observation, *rest, step_info = env.step("echo")
        assert (observation, rest) == (BROKEN, [0.0, False, True])
        for told in (info, step_info):
            assert re.search(reason, told["reason"])

    def test_unavailable_is_an_exception_of_reset(self):
        env = TerminalEnv(FakeSuite(), sandbox=UnavailableSandbox)
        with pytest.raises(SandboxUnavailableError, match="no namespaces here"):
            env.reset()
        with pytest.raises(ResetNeeded):
            env.step("echo")
        env.close()


class TestClosing:
    def test_idempotent_and_final(self, env):
        env.reset()
        env.close()
        env.close()
        with pytest.raises(ClosedError):
            env.step("echo")
        with pytest.raises(ClosedError):
            env.reset()

    @pytest.mark.parametrize(("command", "latency"), [("hang", None), ("echo", "lognormal:1000,0")])
    def test_ends_a_step_under_way(self, command, latency):
        env = TerminalEnv(FakeSuite(), sandbox=FakeSandbox, latency=latency)
        env.reset()
        raised = []

        def step():
            try:
                env.step(command)
            except ClosedError as error:
                raised.append(error)

        thread = threading.Thread(target=step)
        thread.start()
        if command == "hang":
            FakeSandbox.hanging.wait(20)
        env.close()
        thread.join(20)
        assert len(raised) == 1

    def test_while_the_sandbox_starts(self):
        class Slow(FakeSandbox):
            def start(self):
                env.close()
                super().start()

        env = TerminalEnv(FakeSuite(), sandbox=Slow)
        with pytest.raises(ClosedError):
            env.reset()

    def test_an_interrupt_in_start_leaves_nothing(self):
        class Interrupted(FakeSandbox):
            def start(self):
                super().start()
                raise KeyboardInterrupt

        env = TerminalEnv(FakeSuite(), sandbox=Interrupted)
        with pytest.raises(KeyboardInterrupt):
            env.reset()
        assert Interrupted.closed == 1
        env.close()

    def test_forgotten_environment_closes_its_sandbox(self):
        env = TerminalEnv(FakeSuite(), sandbox=FakeSandbox)
        env.reset()
        del env
        gc.collect()
        assert FakeSandbox.closed == 1


class TestRender:
    def test_transcript(self):
        env = TerminalEnv(FakeSuite(), task=1, sandbox=FakeSandbox, render_mode="ansi")
        with pytest.raises(ResetNeeded):
            env.render()
        env.reset()
        env.step("echo hello")
        env.step("submit 1")
        assert env.render() == "Submit 1.\n\n$ echo hello\nhello\n[exit 0] ~\n\n$ submit 1\n[submitted]\n"
        env.close()

    def test_none(self, env):
        env.reset()
        assert env.render() is None


@pytest.mark.filterwarnings("ignore::obsspec_gym.envs.sandbox.local.NoIsolationWarning")
class TestReal:
    """On real sandboxes."""

    def test_check_env_has_nothing_to_say(self, real):
        env = gym.make("obsspec_gym/Terminal-v0", suite="basics", sandbox=real)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", NoIsolationWarning)
            check_env(env.unwrapped)
        env.close()

    def test_episode(self, real):
        task = Task(
            "add",
            "Write the sum of the numbers in numbers.txt to sum.txt and submit it.",
            files={"numbers.txt": "17\n25\n", "bin/hi": "#!/bin/sh\necho hi\n"},
            setup="mkdir -p deep/er && cd deep && export LEAK=1 && touch made\nexit 0",
            verifier='[ "$(cat sum.txt)" = "$(cat "$VERIFIER/sum")" ] && [ "$ANSWER" = 42 ] && [ -z "$LEAK" ]',
            verifier_files={"sum": "42\n"},
            requires=("bash", "cat"),
        )
        with TerminalEnv("basics", task=task, sandbox=real) as env:
            env.reset()
            assert env.step('ls; bin/hi; echo "[$LEAK]"')[0] == "bin\ndeep\nnumbers.txt\nhi\n[]\n[exit 0] ~"
            assert env.step("cd deep; X=5; ls")[0] == "er\nmade\n[exit 0] ~/deep"
            assert env.step("cd er; echo $X; false")[0] == "5\n[exit 1] ~/deep/er"
            assert env.step("cd; echo $((17+25)) | tee sum.txt")[0] == "42\n[exit 0] ~"
            assert env.step("submit 42")[:4] == (SUBMITTED, 1.0, True, False)
            env.reset()
            assert env.step("submit 42")[:4] == (SUBMITTED, 0.0, True, False)  # nothing of the last one is left

    def test_missing_program(self, real):
        with TerminalEnv("basics", task=Task("t", "Do.", requires=("bash", "no-such-program")), sandbox=real) as env:
            assert env.reset()[1]["reason"] == "task t needs no-such-program, which the sandbox does not have"
            assert env.step("true")[3] is True

    def test_timeout_and_restart(self, real):
        with TerminalEnv("basics", task=0, sandbox=real, timeout=0.5) as env:
            env.reset()
            assert env.step("echo so far; sleep 60")[0] == "so far\n[timeout after 0.5 s] ~"
            assert env.step("exit 3")[0] == "[exit 3, shell restarted] ~"

    def test_close_ends_a_long_command(self, real):
        env = TerminalEnv("basics", task=0, sandbox=real, timeout=600)
        env.reset()
        raised = []

        def step():
            try:
                env.step("sleep 500")
            except ClosedError as error:
                raised.append(error)

        thread = threading.Thread(target=step)
        thread.start()
        time.sleep(0.3)  # most likely in the middle of it; it must hold at any moment
        env.close()
        thread.join(20)
        assert len(raised) == 1
