"""The scripted fakes do what they are told."""

from __future__ import annotations

import asyncio

import pytest

from obsspec_gym.agents.fakes import ScriptedPolicy, ScriptedWorldModel
from obsspec_gym.agents.history import History
from obsspec_gym.agents.policy import Policy
from obsspec_gym.agents.world_model.base import WorldModel
from obsspec_gym.errors import GenerationCancelled, InvalidArgumentError
from obsspec_gym.types import Action, EpisodeId, Outcome, Prediction

START = History.start(EpisodeId("t"), "do it")


def oracle(history: History, action: Action) -> Outcome:
    return Outcome(f"{history.turn}: {action}", ends=action == "submit")


def ask(model: WorldModel, action: Action = "ls", n: int = 1) -> list[Prediction]:
    return asyncio.run(model.predict(START, action, n))


def test_a_scripted_policy_follows_its_list_and_then_repeats_the_last() -> None:
    policy = ScriptedPolicy(["ls", "submit"])
    assert isinstance(policy, Policy)

    async def main() -> list[Action]:
        history, actions = START, []
        for _ in range(3):
            actions.append(policy.parse(await policy.generate(history, seed=0)))
            history = history.act(actions[-1]).observe("ok")
        return actions

    assert asyncio.run(main()) == ["ls", "submit", "submit"]
    assert [history.turn for history in policy.started] == [0, 1, 2]


def test_a_scripted_policy_may_have_tokens() -> None:
    policy = ScriptedPolicy(lambda history, seed: f"echo {seed}", tokens=True)

    async def main() -> None:
        completion = await policy.generate(START, seed=7)
        assert policy.parse(completion) == "echo 7"
        assert completion.token_ids == policy.encode_action("echo 7") == (*b"echo 7", 256)
        assert len(completion.logprobs) == len(completion.token_ids)

    asyncio.run(main())
    assert policy.encode_observation(None, "ab") == (97, 98)
    assert ScriptedPolicy(["ls"]).encode_observation(None, "ab") == ()


def test_cancelling_a_scripted_completion_is_noted() -> None:
    policy = ScriptedPolicy(["ls"], seconds=3600)

    async def main() -> None:
        generation = policy.generate(START, seed=0)
        await asyncio.sleep(0)
        generation.cancel()
        with pytest.raises(GenerationCancelled):
            await generation
        await asyncio.sleep(0)

    asyncio.run(main())
    assert policy.cancelled == [START]


def test_an_empty_script_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="at least one action"):
        ScriptedPolicy([])
    with pytest.raises(InvalidArgumentError, match="at least one world model"):
        ScriptedWorldModel.mixed([], seed=0)


def test_right() -> None:
    model = ScriptedWorldModel.right(oracle)
    assert isinstance(model, WorldModel)
    [prediction] = ask(model, "submit")
    assert (prediction.observation, prediction.ends) == ("0: submit", True)
    assert ask(model, n=0) == []
    assert [action for _, action, _, _ in model.calls] == ["submit", "ls"]


def test_right_with_an_oracle_that_takes_time() -> None:
    async def slow(history: History, action: Action) -> Outcome:
        await asyncio.sleep(0)
        return oracle(history, action)

    assert ask(ScriptedWorldModel.right(slow))[0].observation == "0: ls"


def test_wrong_is_wrong_in_every_rank_also_where_observations_are_no_text() -> None:
    for truth in (oracle, lambda history, action: Outcome(3)):
        predictions = ask(ScriptedWorldModel.wrong(truth), n=3)
        keys = {(p.observation, p.ends, p.visible) for p in predictions}
        real = truth(START, "ls")
        assert len(keys) == 3
        assert (real.observation, real.ends, real.visible) not in keys


def test_wrong_end() -> None:
    [prediction] = ask(ScriptedWorldModel.wrong_end(oracle), "submit")
    assert (prediction.observation, prediction.ends) == ("0: submit", False)


def test_the_right_one_may_hide_among_wrong_ones() -> None:
    model = ScriptedWorldModel.among(oracle, rank=2)
    assert [p.observation == "0: ls" for p in ask(model, n=4)] == [False, False, True]
    assert all(p.observation != "0: ls" for p in ask(model, n=2))


def test_raising_hanging_and_silent() -> None:
    with pytest.raises(RuntimeError, match="always fails"):
        ask(ScriptedWorldModel.raising())
    with pytest.raises(KeyError):
        ask(ScriptedWorldModel.raising(KeyError("x")))
    assert ask(ScriptedWorldModel.silent()) == []

    async def main() -> ScriptedWorldModel:
        hanging = ScriptedWorldModel.hanging()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await hanging.predict(START, "ls", 1)
        return hanging

    assert asyncio.run(main()).cancelled == 1


def test_mixed_depends_on_seed_history_and_action_only() -> None:
    def sources(seed: int) -> list[str]:
        models = [ScriptedWorldModel.right(oracle), ScriptedWorldModel.wrong(oracle)]
        mixed = ScriptedWorldModel.mixed(models, seed=seed)
        return [ask(mixed, f"command {i}")[0].source for i in range(20)]

    assert sources(1) == sources(1) != sources(2)
    assert set(sources(1)) == {"right", "wrong"}
