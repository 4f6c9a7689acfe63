"""Machines of a task's own as containers: several users, permissions that hold, the same tasks solved."""

from pathlib import Path

import pytest

from obsspec_gym.envs.check import check_suite
from obsspec_gym.envs.images import image_tree
from obsspec_gym.envs.sandbox.docker_image import IMAGE_VARIABLE
from obsspec_gym.envs.scenes import Scenes
from obsspec_gym.envs.tasks.harbor import HarborSuite
from obsspec_gym.envs.tasks.image import read_image
from obsspec_gym.envs.tasks.task import Task
from obsspec_gym.errors import SandboxUnavailableError

SHIPPED = Path(__file__).parents[2] / "envs" / "harbor"


@pytest.fixture(autouse=True)
def base_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """The base image instead of the tests' own, which has no pytest."""
    try:
        image_tree()
    except SandboxUnavailableError as error:
        pytest.skip(str(error))
    monkeypatch.delenv(IMAGE_VARIABLE, raising=False)


def test_shipped_tasks_fail_before_they_are_solved_and_are_solved_by_their_solutions() -> None:
    suite = HarborSuite(SHIPPED)
    checks = check_suite(suite, range(2), "docker")
    assert [(done.before, done.after, done.refused, done.reason) for done in checks] == [(0.0, 1.0, "", "")] * 2


def test_a_machine_has_several_users_and_files_belong_to_them(tmp_path: Path) -> None:
    image = read_image(
        """\
FROM ubuntu:22.04
RUN apt-get update && apt-get install -y python3 && pip install pytest
RUN useradd -m -d /home/user -s /bin/bash user && useradd other
RUN echo secret > /srv/secret && chmod 600 /srv/secret && echo mine > /home/user/mine
RUN chown -R user:user /home/user && chown other /srv/secret
USER user
RUN id -un > /home/user/builder && touch /home/user/made
WORKDIR /home/user
ENV GREETING=hello
""",
        tmp_path,
    )
    with Scenes("docker").scene(Task("t", "", image=image)) as scene:
        sandbox = scene.sandbox
        result = sandbox.run(
            'whoami; pwd; cat builder; stat -c %U mine made /srv/secret; cat /srv/secret; echo "$GREETING"'
        )
    assert result.output.decode().splitlines() == [
        "user",
        "/home/user",
        "user",
        "user",
        "user",
        "other",
        "cat: /srv/secret: Permission denied",
        "hello",
    ]
