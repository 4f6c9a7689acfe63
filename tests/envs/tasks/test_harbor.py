"""Harbor directories: what is read, what is refused, how they are graded, and that experts solve what we ship."""

from collections.abc import Callable
from pathlib import Path

import pytest

from obsspec_gym.envs.check import check_suite
from obsspec_gym.envs.tasks import Suite, get_suite
from obsspec_gym.envs.tasks.harbor import HarborSuite
from obsspec_gym.envs.tasks.harbor_grading import REWARDS, needs_network
from obsspec_gym.envs.terminal import TerminalEnv
from obsspec_gym.errors import InvalidArgumentError

SHIPPED = Path(__file__).parents[3] / "envs" / "harbor"
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a task's directory; files are given by path, others are left out with ``None``."""

    def make(name: str = "sum-up", **files: str | None) -> Path:
        content = {
            "task.toml": "verifier.timeout_sec = 33\nagent.timeout_sec = 44.5\nenvironment.build_timeout_sec = 55\n",
            "instruction.md": "\nSum it up.\n\n",
            "environment/Dockerfile": "FROM ubuntu\nWORKDIR /work\nRUN printf '1\\n2\\n' > numbers\n",
            "tests/test_sum.py": "def test_sum():\n    assert open('/work/sum').read() == '3\\n'\n",
            "solution/solve.sh": "#!/bin/bash\necho 3 > /work/sum\n",
        } | {path.replace("__", "/").replace("_DOT_", "."): text for path, text in files.items()}
        for path, text in content.items():
            if text is not None:
                (tmp_path / "tasks" / name / path).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / "tasks" / name / path).write_text(text)
        return tmp_path / "tasks"

    return make


def test_a_directory_is_read_as_a_task(write: Write) -> None:
    write("b-task")
    suite = get_suite(f"harbor:{write('a-task')}")
    assert isinstance(suite, Suite)
    assert (len(suite), suite.name) == (2, f"harbor:{write('a-task')}")
    task = suite.task(0)
    names = [suite.task(index).id.partition("@") for index in range(2)]
    assert [name for name, _, _ in names] == ["harbor/a-task", "harbor/b-task"]
    assert names[0][2] == names[1][2]
    assert len(names[0][2]) == 8
    assert task == suite.task(0)
    assert (task.instruction, task.verifier_timeout, task.time_limit) == ("Sum it up.", 33.0, 44.5)
    assert task.image is not None
    assert (task.image.timeout, task.image.workdir, task.image.user) == (55.0, "/work", "root")
    assert list(task.verifier_files) == ["tests/test_sum.py"]
    assert task.rewards == ()
    assert "pytest" in task.verifier
    assert len(get_suite(f"harbor:{write() / 'a-task'}")) == 1


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"task_DOT_toml": "[verifier]\ntimeout_sec = -1"}, r"\[verifier\] timeout_sec of task harbor/sum-up must be"),
        ({"task_DOT_toml": "[verifier"}, r"the task\.toml of task harbor/sum-up cannot be read"),
        ({"instruction_DOT_md": None}, r"instruction\.md cannot be read"),
        ({"environment__Dockerfile": None}, r"environment/Dockerfile cannot be read"),
        (
            {"environment__Dockerfile": "FROM a\nFROM b"},
            r"cannot be built: environment/Dockerfile line 2: a second FROM",
        ),
        ({"tests__test_sum_DOT_py": None}, r"task harbor/sum-up has no tests"),
        ({"task_DOT_toml": "environment.cpus = 0"}, r"\[environment\] cpus of task harbor/sum-up must be a positive"),
        ({"task_DOT_toml": "environment.memory_mb = true"}, r"memory_mb of task harbor/sum-up must be a positive"),
        ({"task_DOT_toml": "environment.storage = 'much'"}, r"storage of task harbor/sum-up must be a size"),
    ],
)
def test_what_is_missing_or_wrong_is_named(write: Write, files: dict[str, str | None], message: str) -> None:
    suite = HarborSuite(write(**files))
    with pytest.raises(InvalidArgumentError, match=message):
        suite.task(0)


@pytest.mark.parametrize(
    ("settings", "limits"),
    [
        ("", (None, None, None)),
        ("cpus = 2\nmemory_mb = 512\nstorage_mb = 1000", (2.0, 512, 1000)),
        ("memory = '2G'\nstorage = '1.5 GiB'", (None, 2048, 1536)),
        ("memory = '512m'\nstorage = '1048576'", (None, 512, 1)),
        ("memory_mb = 100\nmemory = '2G'\ncpus = 0.5", (0.5, 100, None)),
    ],
)
def test_what_a_machine_may_use_is_read(write: Write, settings: str, limits: tuple[float | None, ...]) -> None:
    image = HarborSuite(write(task_DOT_toml=f"[environment]\n{settings}\n")).task(0).image
    assert image is not None
    assert (image.cpus, image.memory_mib, image.disk_mib) == limits


def test_the_same_name_with_other_content_is_another_id(write: Write, tmp_path: Path) -> None:
    path = write()
    before = HarborSuite(path).task(0)
    (path / "sum-up/solution/solve.sh").write_text("another way\n")
    assert HarborSuite(path).task(0).id == before.id
    (path / "sum-up/environment/data").write_text("1")
    after = HarborSuite(path).task(0)
    assert after.id != before.id
    assert after.id.startswith("harbor/sum-up@")
    with pytest.raises(InvalidArgumentError, match="is not one of"):
        HarborSuite(path).expert(before)


@pytest.mark.parametrize(
    ("test", "as_built"),
    [
        ("assert open('/work/sum').read() == '3'", True),
        ("subprocess.run(['/usr/bin/python3', '/srv/etc/run', '../etc', 'app/bin'])", True),
        ("assert os.path.exists('/usr/local/bin/tool')", False),
        ("assert 'x' in open('/etc/hosts').read()", False),
        ("subprocess.run(['/bin/tool'])", False),
        ("os.listdir('/lib')", False),
        ("assert shutil.which('tool')", False),
        ("pwd.getpwnam('deploy')", False),
    ],
)
def test_tests_find_programs_as_built_unless_they_name_a_place_of_the_systems(
    write: Write, test: str, as_built: bool
) -> None:
    script = "#!/usr/bin/env bash\nbash /tests/more.sh\n"
    files = {"tests__test_DOT_sh": script, "tests__test_sum_DOT_py": f"def test():\n    {test}\n"}
    assert HarborSuite(write(**files)).task(0).as_built is as_built
    assert not HarborSuite(write(instruction_DOT_md="Edit /etc/hosts.", **files)).task(0).as_built


def test_a_path_without_tasks_and_an_index_too_high_are_refused(write: Write, tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(InvalidArgumentError, match="Harbor task"):
            get_suite(f"harbor:{path}")
    with pytest.raises(InvalidArgumentError, match=r"in \[0, 1\)"):
        HarborSuite(write()).task(1)


def test_the_expert_runs_the_solution_and_hands_in(write: Write) -> None:
    path = write()
    suite = HarborSuite(path)
    assert list(suite.expert(suite.task(0))) == ["bash -c '#!/bin/bash\necho 3 > /work/sum\n'", "submit"]
    (path / "sum-up/solution/data").write_text("3")
    command, submit = suite.expert(suite.task(0))
    assert "base64 -d | tar" in command
    (path / "sum-up/solution/data").unlink()
    (path / "sum-up/solution/solve.sh").write_bytes(b"#!/bin/bash\necho \xff\0")
    command, submit = suite.expert(suite.task(0))
    assert "base64 -d | tar" in command
    assert submit == "submit"
    (path / "sum-up/solution/solve.sh").unlink()
    with pytest.raises(InvalidArgumentError, match=r"has no solution/solve\.sh"):
        suite.expert(suite.task(0))


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("apt-get update", True),
        ("apt-get -qq install -y curl", True),
        ("curl -LsSf https://example.org | sh", True),
        ("uvx pytest /tests", True),
        ("pip3 install pytest", True),
        ("git clone x", True),
        ("cd /app && pytest /tests/test_a.py -rA", False),
        ("# curl is not needed", False),
        ("echo curling; python3 -m pytest --install-nothing", False),
    ],
)
def test_scripts_that_fetch_something_are_told_from_others(script: str, expected: bool) -> None:
    assert needs_network(f"#!/bin/bash\n{script}\necho done\n") is expected


def test_a_test_script_that_needs_no_network_is_what_grades(write: Write) -> None:
    task = HarborSuite(write(tests__test_DOT_sh="pytest /tests\n")).task(0)
    assert task.rewards == REWARDS
    assert "/bin/bash /tests/test.sh" in task.verifier
    task = HarborSuite(write(tests__test_DOT_sh="uvx pytest /tests\n", tests__test_sum_DOT_py=None)).task(0)
    assert (
        "needs the network"
        in HarborSuite(write("other", tests__test_sum_DOT_py=None, tests__test_DOT_sh="curl x")).task(0).verifier
    )


@pytest.mark.parametrize(
    ("script", "reward"),
    [
        ("echo 0.25 > /logs/verifier/reward.txt; exit 1", 0.25),
        ('echo \'{"reward": 0.5, "style": 1}\' > /logs/verifier/reward.json', 0.5),
        ("echo 1 > /logs/verifier/reward.txt; echo '{\"reward\": 0}' > /logs/verifier/reward.json", 1.0),
        ("test -e /work/sum", 0.0),
        ("grep -q plan[t]ed /tests/* /logs/verifier/* && exit 1; ls /tests; test -f /tests/test_sum.py", 1.0),
        ("echo nonsense > /logs/verifier/reward.txt", 0.0),
    ],
)
@pytest.mark.usefixtures("needs_image")
def test_rewards_come_from_the_files_else_from_the_exit_status(write: Write, script: str, reward: float) -> None:
    path = write(tests__test_DOT_sh=script)
    env = TerminalEnv(f"harbor:{path}", task=0)
    try:
        assert env.reset(seed=0)[0] == "Sum it up."
        observation, *_ = env.step("cat numbers; ls /tests /logs/verifier")
        assert observation == "1\n2\n/logs/verifier:\n\n/tests:\n[exit 0] /work"
        env.step(
            "for p in /tests/test_sum.py /logs/verifier/reward.txt; do echo 'planted' > $p; done; ln -s /etc /tests/etc"
        )
        _, got, terminated, _, info = env.step("submit")
        assert (got, terminated) == (reward, True)
        assert reward or "nonsense" not in script or "not a finite number" in info["verifier_output"]
    finally:
        env.close()


@pytest.mark.usefixtures("needs_image")
def test_without_the_network_pytest_grades_and_nothing_an_agent_leaves_takes_part(write: Write) -> None:
    path = write(tests__test_DOT_sh="curl https://example.org/install.sh | sh; pytest /tests")
    env = TerminalEnv(f"harbor:{path}", task=0)
    hooks = "def pytest_collection_modifyitems(items):\n    items.clear()\n"
    try:
        for solution, reward in (("", 0.0), ("; echo 3 > sum", 1.0)):
            env.reset()
            env.step(
                f"echo '{hooks}' | tee conftest.py /conftest.py > /tests/conftest.py;"
                "echo 'raise SystemExit(0)' > pytest.py;"
                f"printf '[pytest]\\naddopts = --collect-only\\n' > pytest.ini; cp pytest.ini /tests;"
                f"echo 1 > /logs/verifier/reward.txt{solution}"
            )
            assert env.step("submit")[1] == reward
    finally:
        env.close()


@pytest.mark.usefixtures("needs_image")
def test_every_shipped_task_fails_before_it_is_solved_and_is_solved_by_its_solution() -> None:
    suite = HarborSuite(SHIPPED)
    checks = check_suite(suite, range(len(suite)))
    assert len(checks) == 6
    assert [(done.task_id, done.before, done.after, done.refused) for done in checks] == [
        (suite.task(index).id, 0.0, 1.0, "") for index in range(len(suite))
    ]
    assert all(suite.task(index).as_built for index in range(len(suite)))


# What an agent that is root can do to whatever the tests run, each with "bash", "python3" or "pytest" in mind.
TAMPERING = {
    "programs": "for p in /usr/bin/{python3,python3.*,bash,env,pytest}; do rm -f $p; ln -s /bin/true $p; done",
    "a module": "for d in /usr/lib/python3*; do echo 'import os; os._exit(0)' >$d/sitecustomize.py; done",
    "a path file": "for d in /usr/l*/*/python3*/*-packages; do echo 'import os; os._exit(0)' >$d/x.pth; done",
    "a user's module": "d=$(python3 -m site --user-site); mkdir -p $d; echo 'import os; os._exit(0)' >$d/x.pth",
    "a preloaded library": "echo 'void __attribute__((constructor)) f(void) { _exit(0); }' >x.c && "
    "gcc -w -shared -fPIC -o /usr/lib/x.so x.c && echo /usr/lib/x.so >/etc/ld.so.preload",
    "the way there": "mkdir /srv/bin; for p in bash sh env python3 cp; do cp /usr/bin/true /srv/bin/$p; done; "
    "ln -sfn /srv/bin /bin; ln -sfn /srv/bin /sbin",
}


@pytest.mark.parametrize("how", TAMPERING)
@pytest.mark.parametrize("script", ["python3 -m pytest -q -p no:cacheprovider /tests", "uvx pytest /tests"])
@pytest.mark.usefixtures("needs_image")
def test_an_agent_that_is_root_cannot_replace_what_tests_run(write: Write, script: str, how: str) -> None:
    env = TerminalEnv(f"harbor:{write(task_DOT_toml='', tests__test_DOT_sh=script)}", task=0)
    try:
        for solution, reward in ((":", 0.0), ("echo 3 > /work/sum", 1.0)):
            env.reset()
            env.step(f"{solution}; {TAMPERING[how]}")
            assert env.step("submit")[1] == reward, solution
    finally:
        env.close()


@pytest.mark.usefixtures("needs_image")
def test_programs_where_the_dockerfiles_path_says_are_for_tests_alone(write: Write) -> None:
    dockerfile = "FROM ubuntu\nENV PATH=/work/bin:$PATH\nWORKDIR /work\n"
    script = "tool; echo 0 > /logs/verifier/reward.txt; exit 1\n"
    env = TerminalEnv(f"harbor:{write(environment__Dockerfile=dockerfile, tests__test_DOT_sh=script)}", task=0)
    try:
        env.reset()
        plant = "printf '#!/bin/sh\\necho 1 > /logs/verifier/reward.txt; echo 1\\n' > bin/$p; chmod +x bin/$p"
        env.step(f"mkdir bin; for p in bash cp find rm mkdir head cat tool; do {plant}; done")
        _, reward, _, _, info = env.step("submit")
        assert (reward, info["verifier_output"]) == (0.0, "1\n")
    finally:
        env.close()


@pytest.mark.usefixtures("needs_image")
def test_tests_find_the_environment_of_the_dockerfile(write: Write) -> None:
    dockerfile = "FROM ubuntu\nENV PATH=/opt/tools:$PATH COLOUR='deep red' VERIFIER=mine ANSWER=1 UID=7\n"
    dockerfile += (
        "RUN mkdir /opt/tools && printf '#!/bin/sh\\necho tool\\n' >/opt/tools/tool && chmod +x /opt/tools/tool\n"
    )
    script = '[ "$(tool):$COLOUR:$ANSWER" = "tool:deep red:" ]\n'
    env = TerminalEnv(f"harbor:{write(environment__Dockerfile=dockerfile, tests__test_DOT_sh=script)}", task=0)
    try:
        env.reset()
        assert env.step("submit")[1] == 1.0
    finally:
        env.close()
