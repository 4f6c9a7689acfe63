import pytest

from obsspec_gym.errors import SandboxUnavailableError


@pytest.fixture(scope="session")
def real():
    """The kind of sandbox that works on this machine: bubblewrap where it can."""
    from obsspec_gym.envs.sandbox import make_sandbox

    sandbox = make_sandbox("bubblewrap")
    try:
        sandbox.start()
    except SandboxUnavailableError:
        return "local"
    finally:
        sandbox.close()
    return "bubblewrap"
