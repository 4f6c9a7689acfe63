"""Scenes set and judged: rewards as verifiers write them, time limits, machines that cannot be made."""

import pytest

from obsspec_gym.envs.reward import read_reward
from obsspec_gym.envs.sandbox import make_sandbox
from obsspec_gym.envs.sandbox.bubblewrap import bubblewrap_available
from obsspec_gym.envs.scene import judge, prepare
from obsspec_gym.envs.tasks.task import Image, Task
from obsspec_gym.envs.terminal import TerminalEnv
from obsspec_gym.errors import SandboxError


@pytest.fixture(autouse=True)
def needs_bubblewrap() -> None:
    if reason := bubblewrap_available():
        pytest.skip(reason)


@pytest.mark.parametrize(
    ("text", "reward"),
    [("1", 1.0), (" 0.5\n", 0.5), ("-2e-1", -0.2), ('{"reward": 0.5, "a": 9}', 0.5), ('{"a": 1, "b": 0.5}', 0.75)],
)
def test_a_reward_is_a_number_or_an_object_of_numbers(text: str, reward: float) -> None:
    assert read_reward(text) == (reward, "")


@pytest.mark.parametrize(
    "text", ["", "yes", "NaN", "Infinity", "[1]", "true", "{}", '{"reward": "1"}', '{"a": null}', "1 2"]
)
def test_anything_else_is_no_reward_and_the_verdict_says_so(text: str) -> None:
    reward, complaint = read_reward(text)
    assert reward == 0.0
    assert repr(text) in complaint


@pytest.mark.parametrize(
    ("verifier", "reward", "printed"),
    [
        ("echo 0.25 > /tmp/b; echo seen", 0.25, "seen\n"),
        ("echo 0.25 > /tmp/b; echo 0.75 > /tmp/a", 0.75, ""),
        ("echo seen; exit 3", 0.0, "seen\n"),
        ("true", 1.0, ""),
        ("if", 0.0, None),
        ("trap 'echo 0.5 > /tmp/a' EXIT; exit 1", 0.5, ""),
        (": > /tmp/a; echo 1 > /tmp/b", 0.0, "\n[broken reward, not a finite number: '']"),
        ("mkdir /tmp/a; echo 1 > /tmp/b", 0.0, "\n[broken reward, not a finite number: '']"),
        ("ln -s nowhere /tmp/a", 0.0, "\n[broken reward, not a finite number: '']"),
    ],
)
def test_a_verifier_writes_its_reward_or_ends_with_it(verifier: str, reward: float, printed: str | None) -> None:
    task = Task("t", "", verifier=verifier, rewards=("/tmp/a", "/tmp/b"))
    sandbox = make_sandbox("bubblewrap")
    try:
        sandbox.start()
        verdict = judge(sandbox, task, "")
        assert verdict.reward == reward
        assert printed is None or verdict.output == printed
    finally:
        sandbox.close()


def test_a_trial_runs_apart_and_the_verifier_finds_what_it_printed() -> None:
    trial = 'ls "$VERIFIER"; echo "[$ANSWER]"; : > left; sleep 1000 & echo $0 >&2; exit 3'
    verifier = 'ls "$VERIFIER"; cat "$VERIFIER/trial" left; pgrep -c sleep; [ "$ANSWER" = a ]'
    task = Task("t", "", verifier=verifier, verifier_files={"key": "k"}, trial=trial, trial_files={"input": "i"})
    sandbox = make_sandbox("bubblewrap")
    try:
        sandbox.start()
        verdict = judge(sandbox, task, "a")
        printed = verdict.output.splitlines()
        assert (verdict.reward, printed[:4], printed[5:]) == (1.0, ["key", "trial", "input", "[]"], ["0"])
        # Neither file lies where the other lay, and nothing can be known of it before.
        assert printed[4].startswith("/verifier/")
        assert printed[4] not in judge(sandbox, task, "a").output
        hanging = Task("t", "", verifier="true", trial="sleep 1000", verifier_timeout=0.3)
        assert judge(sandbox, hanging, "").reward == 0.0
    finally:
        sandbox.close()


@pytest.mark.parametrize(
    ("answer", "trial", "handed_in", "reward"),
    [
        ("4", "", "4", 1.0),
        ("4", "", "4 ", 0.0),
        ("4", "", "", 0.0),
        ("", "", "", 1.0),
        (None, "cat made", "anything", 1.0),
        (None, "cat made; exit 3", "", 1.0),
        (None, "cat made; echo", "", 0.0),
        (None, "cat made made", "", 0.0),
        ("4", "cat made", "4", 1.0),
        ("4", "cat made", "5", 0.0),
        ("4", "cat made; sleep 1000", "4", 0.0),
    ],
)
def test_without_a_verifier_the_answer_and_what_the_trial_printed_say_everything(
    answer: str | None, trial: str, handed_in: str, reward: float
) -> None:
    tried = "1\n2\n"
    task = Task("t", "", verifier="", answer=answer, trial=trial, tried=tried, verifier_timeout=0.5)
    sandbox = make_sandbox("bubblewrap")
    try:
        sandbox.start()
        sandbox.run("printf '1\\n2\\n' > made")
        verdict = judge(sandbox, task, handed_in)
        assert (verdict.reward, bool(verdict.output)) == (reward, reward == 0.0 or bool(trial))
    finally:
        sandbox.close()


def test_nothing_is_run_to_compare_an_answer() -> None:
    never_started = make_sandbox("bubblewrap")
    verdicts = [judge(never_started, Task("t", "", verifier="", answer="4"), answer) for answer in ("4", "5")]
    wrong_before_the_trial = judge(never_started, Task("t", "", verifier="", answer="4", trial="true"), "5")
    assert [verdict.reward for verdict in (*verdicts, wrong_before_the_trial)] == [1.0, 0.0, 0.0]


def test_a_machine_needs_a_sandbox_with_an_image() -> None:
    sandbox = make_sandbox("local")
    with pytest.raises(SandboxError, match="needs a sandbox with an image, got LocalSandbox"):
        prepare(sandbox, Task("t", "", image=Image(build="true")))


def test_an_episode_ends_when_its_commands_took_too_long_together() -> None:
    env = TerminalEnv(task=Task("t", "", time_limit=1.2, timeout=30.0, verifier="true"))
    try:
        env.reset()
        assert not env.step("true")[3]
        observation, _, terminated, truncated, info = env.step("sleep 20")
        assert observation in ("[timeout after 1 s] ~", "[timeout after 2 s] ~")
        assert (terminated, truncated, info["broken"]) == (False, True, False)
        assert info["reason"] == "no submit within 1.2 s of commands"
    finally:
        env.close()
