"""I1 to I7 with everything on, under thousands of drawn schedules on the virtual clock."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from obsspec_gym.agents.engine.simulated import SimulatedEngine, constant_step
from obsspec_gym.agents.fakes import ScriptedWorldModel
from obsspec_gym.agents.token_policy import TokenPolicy
from obsspec_gym.speculation.clock import run_virtual
from obsspec_gym.speculation.selector import FixedSelector
from obsspec_gym.speculation.speculator import Speculator
from obsspec_gym.types import EpisodeId, Outcome, Sampling

from .schedules import Event, Mood, Plan, Schedule, Watched, reference

_USUAL = (Mood.RIGHT,) * 8 + (Mood.AMONG, Mood.AMONG)
_EVENTS = (Event.NOTHING,) * 7 + (Event.UPDATE, Event.UPDATE, Event.INTERRUPTION, Event.INTERRUPTION, Event.BREAKDOWN)
plans = st.builds(
    Plan,
    tool=st.sampled_from([60, 0, 5, 20, 200, 200]),
    predict=st.sampled_from([0, 1, 5, 10, 40]),
    mood=st.sampled_from([*_USUAL, *Mood]),
    depth=st.sampled_from([1, 0, 2, 3, 4, 4]),
    breadth=st.integers(1, 4),
    declined=st.sampled_from([-1, -1, -1, 0, 1]),
    event=st.sampled_from(_EVENTS),
    at=st.sampled_from([0, 1, 5, 10, 15, 50]),
)
schedules = st.builds(
    Schedule,
    plans=st.lists(plans, min_size=1, max_size=5).map(tuple),
    episodes=st.integers(1, 4),
    environments=st.integers(1, 3),
    turns=st.integers(2, 6),
    answers=st.integers(1, 3),
    longest=st.sampled_from([9, 1, 3, 15]),
    step=st.sampled_from([1, 5]),
    slowing=st.booleans(),
    max_running=st.sampled_from([1, 3, 64]),
    max_futures=st.sampled_from([64, 1, 3, 64]),
    refusing=st.booleans(),
)
SEEN: Counter[str] = Counter()


@settings(max_examples=2200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(schedule=schedules)
def test_every_schedule_gives_what_no_speculation_gives(schedule: Schedule) -> None:
    watched = Watched(schedule)
    done = run_virtual(watched.run())
    expected = reference(schedule)
    if schedule.environments == 1 or not watched.updates:  # or which turn an update meets is a matter of time
        assert done == expected  # I2a, I3
    assert sum(len(each.observations) for each in done.values()) == len(watched.records)
    SEEN.update(
        schedules=1,
        compared=schedule.environments == 1 or not watched.updates,
        updates=watched.updates,
        interruptions=watched.interruptions,
        breakdowns=sum(each.broken for each in done.values()),
        deep=watched.most_futures > 4,
        hits=sum(turn.hit for turn in watched.records),
        misses=sum(bool(turn.predictions) and not any(p.matched for p in turn.predictions) for turn in watched.records),
        late=sum(turn.late for turn in watched.records),
        given_up=sum(len(turn.futures) for turn in watched.records),
        mid_generation=sum(
            turn.hit and turn.generation is not None and turn.generation.end > turn.committed
            for turn in watched.records
        ),
    )


def test_the_schedules_were_not_idle() -> None:
    """What the test above is about did happen, often."""
    if not SEEN:
        test_every_schedule_gives_what_no_speculation_gives()
    assert SEEN["schedules"] >= 2000
    assert SEEN["compared"] >= 1200
    assert SEEN["deep"] >= 50
    for kind in ("updates", "interruptions", "breakdowns", "hits", "misses", "late", "given_up", "mid_generation"):
        assert SEEN[kind] >= 100, (kind, SEEN)


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
@pytest.mark.parametrize("ends", [False, True])
def test_nothing_grows_on_what_is_given_up_at_the_very_moment_its_action_is_known(steps: int, ends: bool) -> None:
    """The tool ends in the same turn of the event loop in which a future several levels deep is finished."""

    async def main() -> int:
        model = ScriptedWorldModel.wrong(lambda history, action: Outcome("ok"))
        engine = SimulatedEngine(constant_step(0.25), length=lambda prompt, seed: 1)
        speculator = Speculator(TokenPolicy(engine, Sampling()), model, FixedSelector(4, 1))
        action = speculator.start(EpisodeId("t"), "go")
        chosen = await action
        tool = asyncio.sleep(0.25 * steps, Outcome("ok", ends))
        _, following = await speculator.turn(action.history, chosen, execute=tool)
        submitted = engine.counters.submitted
        if following is not None:
            await following
        await asyncio.sleep(100)
        assert engine.load().running == 0
        return engine.counters.submitted - submitted

    assert run_virtual(main()) == 0
