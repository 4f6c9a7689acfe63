"""Environments over containers: one breaks, the others go on."""

from __future__ import annotations

from docker_tools import ours

from obsspec_gym.envs.sandbox import make_sandbox
from obsspec_gym.envs.sandbox.daemon import Daemon
from obsspec_gym.envs.sandbox.pool import SandboxPool
from obsspec_gym.envs.tasks.task import Task
from obsspec_gym.envs.vector import TerminalVectorEnv


def test_a_removed_container_truncates_one_episode(daemon: Daemon) -> None:
    before = ours(daemon)
    task = Task(id="t", instruction="say done", verifier='test "$ANSWER" = done')
    envs = TerminalVectorEnv(2, task=task, sandbox="docker")
    envs.reset(seed=0)
    observations, *_ = envs.step(["hostname; echo a >f", "hostname"])
    assert [text.splitlines()[0] for text in observations] == ["sandbox", "sandbox"]
    victim = envs._workers[0].env._owner._sandbox._container.name
    envs.send(["sleep 1000"], env_ids=[0])
    daemon.api.remove_container(victim, force=True)
    ((env_id, broken),) = envs.recv()
    assert (env_id, broken.truncated, broken.terminated, broken.info["broken"]) == (0, True, False, True)
    assert "the container is gone" in broken.info["reason"]
    envs.send(["echo b", "submit done"], env_ids=[0, 1])  # the first begins anew
    results = dict(envs.recv(2))
    assert results[0].observation == "say done"
    assert (results[1].reward, results[1].terminated) == (1.0, True)
    envs.close()
    assert ours(daemon) == before


def test_a_pool_hands_out_fresh_sandboxes_and_leaves_nothing(daemon: Daemon) -> None:
    before = ours(daemon)
    with SandboxPool(lambda: make_sandbox("docker"), size=2) as pool:
        first = pool.acquire()
        first.run("echo used >f")
        second = pool.acquire()
        assert second.run("ls").output == b""
        daemon.api.remove_container(second._container.name, force=True)
        first.close()
        second.close()
        assert pool.acquire().run("echo on").output == b"on\n"
    del first, second
    import gc

    gc.collect()
    assert ours(daemon) == before
