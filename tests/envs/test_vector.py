import gc
import signal
import subprocess
import sys
import textwrap
import threading
import time
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from sandbox_kinds import KINDS
from terminal_fakes import Counter, FakeSandbox, FakeSuite, UnavailableSandbox

import obsspec_gym  # noqa: F401 - registers the environment
from obsspec_gym.envs.sandbox.bubblewrap import bubblewrap_available
from obsspec_gym.envs.terminal import BROKEN, SUBMITTED, TerminalEnv
from obsspec_gym.envs.threads import ThreadVectorEnv
from obsspec_gym.envs.vector import TerminalVectorEnv
from obsspec_gym.errors import ClosedError, InvalidArgumentError, SandboxUnavailableError


def our_threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("obsspec_gym environment")]


@pytest.fixture(autouse=True)
def _nothing_left():
    FakeSandbox.clear()
    yield
    gc.collect()
    assert our_threads() == []
    assert FakeSandbox.opened == FakeSandbox.closed


@pytest.fixture
def terminals():
    envs = TerminalVectorEnv(3, suite=FakeSuite(), sandbox=FakeSandbox)
    yield envs
    envs.close()


@pytest.fixture(params=KINDS)
def real(request):
    """A kind of sandbox that this machine can provide."""
    if request.param == "bubblewrap" and (reason := bubblewrap_available()):
        pytest.skip(reason)
    return request.param


@pytest.fixture(params=list(AutoresetMode))
def mode(request):
    return request.param


@pytest.fixture
def counters(mode):
    envs = ThreadVectorEnv([Counter] * 3, autoreset_mode=mode)
    yield envs
    envs.close()


def same(ours, theirs):
    """Whether two returns of a vector environment are equal, dtypes included."""
    if isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(same(ours[key], theirs[key]) for key in theirs)
    if isinstance(theirs, tuple):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    if isinstance(theirs, np.ndarray):
        alike = ours.dtype == theirs.dtype and ours.shape == theirs.shape
        return alike and all(map(same, ours.ravel().tolist(), theirs.ravel().tolist()))
    return type(ours) is type(theirs) and ours == theirs


class TestGymnasiumContract:
    """Gymnasium's own SyncVectorEnv is the reference."""

    @pytest.mark.parametrize("seed", [7, [3, 9, 5]])
    def test_same_as_sync(self, mode, seed):
        make = partial(gym.make, "FrozenLake-v1", max_episode_steps=6)
        ours, theirs = ThreadVectorEnv([make] * 3, autoreset_mode=mode), SyncVectorEnv([make] * 3, autoreset_mode=mode)
        assert (ours.action_space, ours.observation_space) == (theirs.action_space, theirs.observation_space)
        assert ours.metadata == theirs.metadata
        assert same(ours.reset(seed=seed), theirs.reset(seed=seed))
        assert ours.np_random_seed == theirs.np_random_seed
        rng = np.random.default_rng(0)
        episodes = 0
        for _ in range(60):
            actions = rng.integers(0, 4, 3)
            our_step, their_step = ours.step(actions), theirs.step(actions)
            assert same(our_step, their_step)
            ended = our_step[2] | our_step[3]
            episodes += ended.sum()
            if mode is AutoresetMode.DISABLED and ended.any():
                assert same(
                    ours.reset(options={"reset_mask": ended}), theirs.reset(options={"reset_mask": ended.copy()})
                )
        assert episodes > 10
        ours.close()
        theirs.close()

    def test_make_vec(self):
        envs = gym.make_vec(
            "obsspec_gym/Terminal-v0", num_envs=2, suite=FakeSuite(), sandbox=FakeSandbox, max_episode_steps=2
        )
        assert isinstance(envs, TerminalVectorEnv)
        assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
        assert envs.spec.id == "obsspec_gym/Terminal-v0"
        envs.reset(seed=0)
        assert envs.step(["echo", "echo"])[3].tolist() == [False, False]
        assert envs.step(["echo", "echo"])[3].tolist() == [True, True]
        envs.close()

    def test_seeds(self, terminals):
        def draws(seed):
            return [terminals.reset(seed=seed)[1]["task_id"].tolist(), terminals.reset()[1]["task_id"].tolist()]

        assert draws(5) == draws([5, 6, 7])
        assert terminals.np_random_seed == (5, 6, 7)
        assert draws(5) != draws(6)
        with pytest.raises(InvalidArgumentError, match=r"one for each of 3 environments, got \[1, 2\]"):
            terminals.reset(seed=[1, 2])

    def test_terminal_batch(self, terminals):
        instructions, infos = terminals.reset(options={"task": 1})
        assert instructions == ("Submit 1.",) * 3
        assert infos["task_id"].tolist() == ["fake/1"] * 3
        observations, rewards, terminated, truncated, infos = terminals.step(["echo é", "slow", "submit 1"])
        assert observations == ("é\n[exit 0] ~", "so far\n[timeout after 30 s] ~", SUBMITTED)
        assert rewards.tolist() == [0.0, 0.0, 1.0]
        assert terminated.tolist() == [False, False, True]
        assert truncated.tolist() == [False, False, False]
        assert infos["_exit_code"].tolist() == [True, False, False]
        assert infos["_verifier_output"].tolist() == [False, False, True]
        assert infos["tool_seconds"].dtype == np.float64
        assert observations in terminals.observation_space

    def test_step_in_parts(self, terminals):
        terminals.reset()
        actions = terminals.check(["echo a", "fail", "slow"])
        futures = [terminals.submit(env_id, action) for env_id, action in enumerate(actions)]
        observations, *_, infos = terminals.collate([future.result(20) for future in futures])
        assert observations == ("a\n[exit 0] ~", "no\n[exit 1] ~", "so far\n[timeout after 30 s] ~")
        assert infos["_exit_code"].tolist() == [True, True, False]
        with pytest.raises(InvalidArgumentError):
            terminals.check(["echo"])

    def test_next_step_ignores_the_action_of_an_ended_episode(self, terminals):
        terminals.reset(options={"task": 1})
        terminals.step(["submit 1", "echo", "echo"])
        observations, rewards, terminated, _, infos = terminals.step([None, "echo a", "echo b"])
        assert observations[0].startswith("Submit ")
        assert (rewards[0], terminated[0], infos["turn"].tolist()) == (0.0, False, [0, 2, 2])
        assert observations[1:] == ("a\n[exit 0] ~", "b\n[exit 0] ~")

    def test_same_step_keeps_what_was_last(self):
        envs = TerminalVectorEnv(2, suite=FakeSuite(), sandbox=FakeSandbox, autoreset_mode="SameStep")
        envs.reset(options={"task": 1})
        observations, rewards, terminated, _, infos = envs.step(["submit 1", "echo a"])
        assert observations[0].startswith("Submit ")
        assert (rewards[0], terminated[0]) == (1.0, True)
        assert infos["final_obs"].tolist() == [SUBMITTED, None]
        assert infos["final_info"]["task_id"].tolist() == ["fake/1", None]
        assert infos["_final_info"].tolist() == [True, False]
        assert infos["turn"].tolist() == [0, 1]
        envs.close()

    def test_disabled_refuses_to_step_an_ended_episode(self):
        envs = TerminalVectorEnv(2, suite=FakeSuite(), sandbox=FakeSandbox, autoreset_mode=AutoresetMode.DISABLED)
        envs.reset(options={"task": 1})
        envs.step(["submit 1", "echo"])
        with pytest.raises(ResetNeeded, match="environment 0 is over"):
            envs.step(["echo", "echo"])
        options = {"reset_mask": np.array([True, False]), "task": 2, "sample": 4}
        observations, infos = envs.reset(options=options)
        assert options.keys() == {"reset_mask", "task", "sample"}  # the caller's
        assert observations == ("Submit 2.", "\n[exit 0] ~")
        assert infos["sample"].tolist() == [4, 0]
        assert infos["_sample"].tolist() == [True, False]
        assert envs.step(["echo a", "echo b"])[4]["turn"].tolist() == [1, 2]
        envs.close()

    @pytest.mark.parametrize(
        "mask", [[True, False, True], np.array([1, 0, 0]), np.array([True]), np.zeros(3, dtype=bool)]
    )
    def test_bad_masks(self, terminals, mask):
        with pytest.raises(InvalidArgumentError, match="reset_mask must be a boolean array of shape"):
            terminals.reset(options={"reset_mask": mask})

    def test_attributes(self, counters):
        counters.reset()
        counters.step([0, 0, 0])
        assert counters.get_attr("steps") == (1, 1, 1)
        counters.set_attr("steps", [0, 1, 2])
        assert counters.step([0, 0, 0])[2].tolist() == [False, False, True]
        counters.set_attr("weak", False)
        assert counters.call("get_wrapper_attr", "weak") == (False,) * 3
        with pytest.raises(InvalidArgumentError, match="got 2"):
            counters.set_attr("steps", [0, 1])

    def test_render(self):
        envs = TerminalVectorEnv(2, suite=FakeSuite(), sandbox=FakeSandbox, task=1, render_mode="ansi")
        envs.reset()
        envs.step(["echo a", "echo b"])
        assert envs.render_mode == "ansi"
        assert [text.splitlines()[2] for text in envs.render()] == ["$ echo a", "$ echo b"]
        envs.close()

    @pytest.mark.parametrize("arguments", [{"num_envs": 0}, {"num_envs": 1.0}, {"autoreset_mode": "Sometimes"},
                                           {"suite": "none such"}, {"max_episode_steps": 0}])  # fmt: skip
    def test_bad_arguments(self, arguments):
        with pytest.raises(InvalidArgumentError):
            TerminalVectorEnv(**{"num_envs": 1, "suite": FakeSuite(), "sandbox": FakeSandbox} | arguments)


class TestOverGymnasiumsVectors:
    def test_sync(self):
        make = partial(TerminalEnv, FakeSuite(), sandbox=FakeSandbox)
        self.check(SyncVectorEnv([make] * 2))

    def test_async(self):
        make = partial(gym.make, "obsspec_gym:obsspec_gym/Terminal-v0", suite=FakeSuite(), sandbox=FakeSandbox)
        self.check(AsyncVectorEnv([make] * 2, shared_memory=False, context="spawn"))

    def check(self, envs):
        instructions, infos = envs.reset(seed=1, options={"task": 1})
        assert instructions == ("Submit 1.", "Submit 1.")
        observations, rewards, terminated, _, infos = envs.step(("echo a", "submit 1"))
        assert observations == ("a\n[exit 0] ~", SUBMITTED)
        assert rewards.tolist() == [0.0, 1.0]
        assert terminated.tolist() == [False, True]
        assert infos["_exit_code"].tolist() == [True, False]
        envs.close()


class TestBadActions:
    @pytest.mark.parametrize(
        ("actions", "message"),
        [
            (["echo", "echo"], "actions must be 3, one for each environment, got 2"),
            (["echo"] * 4, "got 4"),
            ("cat", "sequence of 3, one for each environment, got str"),
            (None, "got NoneType"),
            (["echo", 3, "echo"], "a terminal action is a str, got int"),
            (["echo", "echo", "a\0"], "NUL"),
        ],
    )
    @pytest.mark.parametrize("way", ["step", "send"])
    def test_nothing_is_sent(self, terminals, way, actions, message):
        terminals.reset()
        with pytest.raises(InvalidArgumentError, match=message):
            getattr(terminals, way)(actions)
        observations, *_, infos = terminals.step(["echo a", "echo b", "echo c"])
        assert observations == ("a\n[exit 0] ~", "b\n[exit 0] ~", "c\n[exit 0] ~")
        assert infos["turn"].tolist() == [1, 1, 1]

    def test_before_reset(self, terminals):
        with pytest.raises(ResetNeeded, match="environment 0 was not reset"):
            terminals.step(["echo"] * 3)
        assert our_threads() == []  # constructors start nothing, and so do bad calls

    @pytest.mark.parametrize("env_id", [3, -1, "0", 1.0, None])
    def test_no_such_environment(self, terminals, env_id):
        terminals.reset()
        with pytest.raises(InvalidArgumentError, match=r"env_id must be in 0..2"):
            terminals.submit(env_id, "echo")

    def test_env_ids_twice(self, terminals):
        terminals.reset()
        with pytest.raises(InvalidArgumentError, match="once"):
            terminals.send(["echo", "echo"], env_ids=[1, 1])


class TestFaults:
    def test_one_that_raises_truncates_and_the_others_go_on(self, counters, mode, caplog):
        counters.reset()
        _, rewards, _, truncated, infos = counters.step([0, 1, 0])
        told = infos["final_info"] if mode is AutoresetMode.SAME_STEP else infos
        assert told["reason"].tolist() == [None, "ZeroDivisionError: a bug", None]
        assert told["broken"].tolist() == [False, True, False]
        assert truncated.tolist() == [False, True, False]
        assert rewards.tolist() == [1.0, 0.0, 1.0]
        assert "a bug" in caplog.text
        if mode is AutoresetMode.DISABLED:
            counters.reset(options={"reset_mask": truncated})
        elif mode is AutoresetMode.NEXT_STEP:
            counters.step([0, 0, 0])
        assert counters.step([0, 0, 0])[0][1] == 1
        assert counters.get_attr("resets") == (1, 2, 1) if mode is not AutoresetMode.NEXT_STEP else (2, 2, 2)

    def test_one_whose_autoreset_raises(self):
        envs = ThreadVectorEnv([Counter] * 2)
        envs.reset()
        assert envs.step([0, 2])[3].tolist() == [False, True]
        _, _, terminated, truncated, infos = envs.step([0, 0])  # the reset, which fails
        assert infos["reason"].tolist() == [None, "OSError: could not start"]
        assert (terminated.tolist(), truncated.tolist()) == ([False, False], [False, False])
        _, rewards, _, truncated, infos = envs.step([0, 0])
        assert (rewards[1], truncated[1], infos["reason"][1]) == (0.0, True, "OSError: could not start")
        observations, *_ = envs.step([0, 0])
        assert observations[1] == 0
        assert envs.step([0, 0])[0][1] == 1
        envs.close()

    def test_broken_sandbox(self, terminals):
        terminals.reset()
        observations, _, _, truncated, infos = terminals.step(["echo a", "break", "bug"])
        assert observations[:2] == ("a\n[exit 0] ~", BROKEN)
        assert truncated.tolist() == [False, True, True]
        assert infos["reason"].tolist() == [None, "the shell died", "ZeroDivisionError: a bug"]
        assert infos["broken"].tolist() == [False, True, True]

    def test_unavailable_sandbox_is_an_exception_of_reset(self):
        envs = TerminalVectorEnv(2, suite=FakeSuite(), sandbox=UnavailableSandbox)
        with pytest.raises(SandboxUnavailableError, match="no namespaces"):
            envs.reset()
        envs.close()

    def test_partial_reset_leaves_the_others_alone(self):
        envs = ThreadVectorEnv([lambda: gym.wrappers.RecordEpisodeStatistics(Counter()), Counter, Counter])
        envs.reset()
        envs.step([0, 0, 0])
        observations, infos = envs.reset(options={"reset_mask": np.array([False, True, False])})
        assert observations.tolist() == [1, 0, 1]
        assert infos["_resets"].tolist() == [False, True, False]
        assert envs.step([0, 0, 0])[0].tolist() == [2, 1, 2]
        *_, infos = envs.step([0, 0, 0])
        assert infos["episode"]["r"][0] == 3.0  # its statistics were not cleared
        envs.close()


class TestFreeRunning:
    def test_fast_ones_do_not_wait_for_slow_ones(self, terminals):
        terminals.reset()
        terminals.send(["gate", "echo a"], env_ids=[0, 1])
        order = []
        for text in "bcd":
            [(env_id, result)] = terminals.recv()
            order.append((env_id, result.observation))
            terminals.send([f"echo {text}"], env_ids=[1])
        assert order == [(1, f"{text}\n[exit 0] ~") for text in "abc"]
        FakeSandbox.gate.set()
        rest = dict(terminals.recv(min_results=2))
        assert rest[0].observation == "through\n[exit 0] ~"
        assert rest[1][0] == "d\n[exit 0] ~"  # a plain Gymnasium tuple as well

    def test_autoreset(self, terminals):
        terminals.reset(options={"task": 1})
        terminals.send(["submit 1"], env_ids=[2])
        [(_, result)] = terminals.recv()
        assert (result.reward, result.terminated) == (1.0, True)
        terminals.send([""], env_ids=[2])
        [(_, result)] = terminals.recv()
        assert (result.terminated, result.info["turn"]) == (False, 0)

    def test_timeout_and_polling(self, terminals):
        terminals.reset()
        assert terminals.recv(min_results=0) == []
        terminals.send(["gate"], env_ids=[0])
        assert terminals.recv(timeout=0.01) == []
        FakeSandbox.gate.set()
        assert [env_id for env_id, _ in terminals.recv(timeout=20)] == [0]

    def test_waiting_for_what_was_never_sent(self, terminals):
        terminals.reset()
        terminals.send(["echo"], env_ids=[0])
        with pytest.raises(InvalidArgumentError, match="wait for 2 results, and 1 are sent"):
            terminals.recv(min_results=2)

    def test_results_are_never_taken_for_anothers(self, terminals):
        terminals.reset()
        terminals.send(["echo stale"], env_ids=[0])
        with pytest.raises(InvalidArgumentError, match="call recv"):
            terminals.step(["echo"] * 3)
        terminals.reset()
        with pytest.raises(InvalidArgumentError):
            terminals.recv()
        assert terminals.step(["echo a"] * 3)[0] == ("a\n[exit 0] ~",) * 3

    def test_one_call_at_a_time(self, terminals):
        terminals.reset()
        future = terminals.submit(0, "gate")
        for call in (
            partial(terminals.submit, 0, "echo"),
            partial(terminals.submit_reset, 0),
            partial(terminals.step, ["echo"] * 3),
            partial(terminals.send, ["echo"], [0]),
            partial(terminals.get_attr, "render_mode"),
        ):
            with pytest.raises(InvalidArgumentError, match="environment 0 takes one call at a time"):
                call()
        assert not future.cancel()  # what was sent is executed
        FakeSandbox.gate.set()
        assert future.result(20).info["turn"] == 1
        assert terminals.submit(0, "echo a").result(20).info["turn"] == 2

    def test_submit_reset(self, terminals):
        options = {"task": 3, "sample": 2}
        observation, info = terminals.submit_reset(1, seed=0, options=options).result(20)
        assert (observation, info["sample"]) == ("Submit 3.", 2)
        assert terminals.submit(1, "submit 3").result(20)[1:4] == (1.0, True, False)
        terminals.submit_reset(1, options=options).result(20)
        assert terminals.submit(1, "submit 3").result(20).reward == 1.0  # not the autoreset of the last one

    def test_reset_waits_for_calls_under_way(self, terminals):
        terminals.reset()
        future = terminals.submit(0, "gate")
        threading.Timer(0.05, FakeSandbox.gate.set).start()
        terminals.reset()
        assert future.done()
        assert terminals.step(["echo"] * 3)[4]["turn"].tolist() == [1, 1, 1]


class TestClosing:
    def test_idempotent_and_final(self, terminals):
        terminals.reset()
        terminals.close()
        terminals.close()
        for call in (
            partial(terminals.step, ["echo"] * 3),
            terminals.reset,
            partial(terminals.submit, 0, "echo"),
            partial(terminals.submit_reset, 0),
            partial(terminals.send, ["echo"] * 3),
            terminals.recv,
            partial(terminals.get_attr, "spec"),
        ):
            with pytest.raises(ClosedError):
                call()

    def test_unused(self):
        TerminalVectorEnv(2, suite=FakeSuite(), sandbox=FakeSandbox).close()

    def test_ends_steps_under_way(self, terminals):
        terminals.reset()
        hanging = [terminals.submit(0, "hang"), terminals.submit(1, "hang")]
        FakeSandbox.hanging.wait(20)
        terminals.close()
        assert our_threads() == []
        for future in hanging:
            with pytest.raises(ClosedError):
                future.result(0)

    def test_ends_a_recv(self, terminals):
        terminals.reset()
        terminals.send(["hang"], env_ids=[0])
        threading.Timer(0.05, terminals.close).start()
        with pytest.raises(ClosedError):
            terminals.recv()
        terminals.close()

    def test_forgotten(self):
        envs = TerminalVectorEnv(2, suite=FakeSuite(), sandbox=FakeSandbox)
        envs.reset()
        envs.step(["echo"] * 2)
        del envs
        gc.collect()
        assert our_threads() == []

    def test_interrupted_step(self, terminals):
        terminals.reset()
        main = threading.main_thread().ident
        threading.Timer(0.2, partial(signal.pthread_kill, main, signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            terminals.step(["hang", "echo", "echo"])
        terminals.close()
        assert our_threads() == []


def test_real_terminals_leave_nothing_behind(real, tmp_path):
    """A script that uses real sandboxes and forgets to close them, some in the middle of a command."""
    script = tmp_path / "forgetful.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import gymnasium, obsspec_gym
            envs = gymnasium.make_vec("obsspec_gym/Terminal-v0", num_envs=2, suite="basics", sandbox={real!r})
            envs.reset(seed=0)
            observations, *_ = envs.step(["echo a", "sleep 0.1; echo b"])
            assert observations == ("a\\n[exit 0] ~", "b\\n[exit 0] ~"), observations
            envs.send(["sleep 987654", "echo c"])
            print([result.observation for _, result in envs.recv()])
            """
        )
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore:a local sandbox", script], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr, done.returncode) == ("['c\\n[exit 0] ~']\n", "", 0)
    for _ in range(100):
        left = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
        if "sleep 987654" not in left:
            break
        time.sleep(0.1)
    assert "sleep 987654" not in left
