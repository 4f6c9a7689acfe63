"""CallablePolicy: a plain function, sync or async, as a policy."""

from __future__ import annotations

import asyncio

import pytest

from obsspec_gym.agents.history import History
from obsspec_gym.agents.policy import CallablePolicy, Policy, as_policy
from obsspec_gym.errors import GenerationCancelled
from obsspec_gym.types import EpisodeId, FinishReason, Priority

START = History.start(EpisodeId("t"), 41)


def test_calls_the_function_with_history_and_seed() -> None:
    policy = CallablePolicy(lambda history, seed: (history.value, seed))

    async def main() -> None:
        completion = await policy.generate(START, seed=7, priority=Priority.SPECULATIVE, draft=(1,))
        assert policy.parse(completion) == (41, 7)
        assert completion.finish_reason is FinishReason.CALL
        assert completion.token_ids == ()

    asyncio.run(main())
    assert isinstance(policy, Policy)
    assert policy.encode_action(3) == policy.encode_observation(None, 3) == ()


def test_an_async_function_runs_beside_others() -> None:
    async def act(history: History, seed: int) -> int:
        await asyncio.sleep(0)
        return seed

    policy = CallablePolicy(act, addressed_noise=False)
    assert not policy.addressed_noise

    async def main() -> list[int]:
        generations = [policy.generate(START, seed=i) for i in range(5)]
        return [policy.parse(await generation) for generation in generations]

    assert asyncio.run(main()) == [0, 1, 2, 3, 4]


def test_cancelling_stops_the_function() -> None:
    stopped: list[int] = []

    async def act(history: History, seed: int) -> int:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            stopped.append(seed)
            raise
        return 0

    async def main() -> None:
        generation = CallablePolicy(act).generate(START, seed=3)
        await asyncio.sleep(0)
        generation.cancel()
        with pytest.raises(GenerationCancelled):
            await generation
        await asyncio.sleep(0)

    asyncio.run(main())
    assert stopped == [3]


def test_what_the_function_raises_is_raised_to_who_waits() -> None:
    def act(history: History, seed: int) -> int:
        raise KeyError("no such action")

    async def main() -> None:
        with pytest.raises(KeyError, match="no such action"):
            await CallablePolicy(act).generate(START, seed=0)

    asyncio.run(main())


def test_a_function_that_cancels_itself_leaves_nobody_waiting() -> None:
    async def act(history: History, seed: int) -> int:
        raise asyncio.CancelledError

    async def main() -> None:
        async with asyncio.timeout(5):
            with pytest.raises(GenerationCancelled):
                await CallablePolicy(act).generate(START, seed=0)

    asyncio.run(main())


def test_as_policy_takes_policies_and_functions_and_nothing_else() -> None:
    policy = CallablePolicy(lambda history, seed: 0)
    assert as_policy(policy) is policy
    assert isinstance(as_policy(lambda history, seed: 0), CallablePolicy)
    with pytest.raises(TypeError, match="got int"):
        as_policy(3)  # type: ignore[arg-type]
