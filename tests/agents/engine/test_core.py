"""A completion is a pure function of (weights, prompt, sampling, seed): the same bits in any company and order."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import tiny_models  # noqa: E402

from obsspec_gym.agents.engine.embedded.core import Core  # noqa: E402
from obsspec_gym.agents.engine.embedded.requests import Cancel, Promote, Submit  # noqa: E402
from obsspec_gym.agents.engine.embedded.scheduler import Limits  # noqa: E402
from obsspec_gym.agents.engine.embedded.shape import ModelShape  # noqa: E402
from obsspec_gym.agents.engine.embedded.step_times import CHANCE  # noqa: E402
from obsspec_gym.agents.engine.embedded.weights import ModelWeights  # noqa: E402
from obsspec_gym.types import FinishReason, Priority, Sampling  # noqa: E402

V = tiny_models.VOCABULARY
COMMITTED, SPECULATIVE = Priority.COMMITTED, Priority.SPECULATIVE
STEP = 0.01
STEEP = 0.02
"""With such a slope a speculative request is worth its part beside one committed request, and not beside two."""


def weights_of(model, dtype):
    shape = ModelShape.of(model.config)
    weights = ModelWeights.allocate(shape, dtype, torch.device("cpu"))
    weights.load(dict(model.named_parameters()))
    weights.load_rope(model)
    return weights


def step(core, slope=0.0):
    """A step that takes so much longer with each row."""
    ends = core.step()
    core.took(STEP + slope * core.step_rows)
    return ends


def run(core, commands=(), slope=0.0):
    """Carries out the commands, then steps until nothing is left. Returns completions by request."""
    for command in commands:
        core.apply(command)
    completions = {}
    while core.busy:
        for end in step(core, slope):
            assert end.error is None
            completions[end.request] = end.completion
    return completions


def experienced(core, slope=STEEP):
    """A core that knows what rows cost."""
    for rows in [1, 8] * 32:
        core.times.add(rows, STEP + slope * rows)
    return core


def bits(completion):
    return (completion.token_ids, completion.logprobs, completion.finish_reason)


class World:
    """A model, and requests with the completions they have alone in a fresh core."""

    def __init__(self, dtype):
        self.weights = weights_of(tiny_models.qwen3(), dtype)
        self.requests = []
        self.expected = []
        rnd = random.Random(5)
        stems = [[rnd.randrange(V) for _ in range(n)] for n in (1, 3, 63, 64, 100, 250)]
        for i in range(18):
            prompt = stems[i % 6][: rnd.randint(1, 500)] + [rnd.randrange(V) for _ in range(rnd.choice([0, 1, 30]))]
            if i > 12:  # the next turn of an earlier one
                earlier = rnd.randrange(6)
                prompt = [*self.requests[earlier][0], *self.expected[earlier].token_ids, rnd.randrange(V)]
            sampling = Sampling(
                temperature=rnd.choice([0, 0.7, 1.0, 1.0]),
                top_k=rnd.choice([0, 0, 0, 8]),
                top_p=rnd.choice([1, 1, 1, 0.9]),
                max_tokens=rnd.choice([1, 5, 40, 70]),
                stop_token_ids=rnd.choice([(), (7,)]),
            )
            self.requests.append((tuple(prompt), sampling, rnd.randrange(2**63)))
            self.expected.append(run(Core(self.weights, Limits()), [self.submit(i, i)])[i])

    def submit(self, number, request, priority=COMMITTED, draft=()):
        prompt, sampling, seed = self.requests[request]
        return Submit(number, prompt, sampling, seed, priority, tuple(draft))

    def draft(self, request, kind, at):
        right = list(self.expected[request].token_ids)
        if kind == "none":
            return []
        if kind == "wrong" and right:
            right[at % len(right)] = (right[at % len(right)] + 1) % V
        return [*right, 1, 2, 3] if kind == "long" else right


WORLDS = {}


def world_of(dtype):
    if dtype not in WORLDS:
        WORLDS[dtype] = World(dtype)
    return WORLDS[dtype]


operations = st.one_of(
    st.tuples(
        st.just("submit"),
        st.integers(0, 17),
        st.sampled_from([COMMITTED, SPECULATIVE]),
        st.sampled_from(["none", "none", "right", "wrong", "long"]),
        st.integers(0, 30),
    ),
    st.tuples(st.just("cancel"), st.integers(0, 30)),
    st.tuples(st.just("promote"), st.integers(0, 30)),
    st.tuples(st.just("step"), st.integers(1, 12)),
)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@settings(max_examples=20, deadline=None)
@given(
    schedule=st.lists(operations, min_size=4, max_size=30),
    batch_tokens=st.sampled_from([3, 64, 512]),
    running=st.sampled_from([2, 5, 64]),
    capacity=st.sampled_from([512, 1200, 100_000]),
    slope=st.sampled_from([0.0, STEEP]),
)
def test_completions_do_not_depend_on_company_order_cache_drafts_or_pauses(
    dtype, schedule, batch_tokens, running, capacity, slope
):
    world = world_of(dtype)
    core = experienced(
        Core(world.weights, Limits(batch_tokens=batch_tokens, running=running, capacity_tokens=capacity)), slope
    )
    asked, completions, cancelled = [], {}, set()
    for operation, *arguments in schedule:
        if operation == "submit":
            request, priority, kind, at = arguments
            core.apply(world.submit(len(asked), request, priority, world.draft(request, kind, at)))
            asked.append((request, kind))
        elif operation == "step":
            for _ in range(arguments[0]):
                completions |= {end.request: end.completion for end in step(core, slope)}
        elif asked:
            number = arguments[0] % len(asked)
            core.apply(Cancel(number) if operation == "cancel" else Promote(number))
            if operation == "cancel" and number not in completions:
                cancelled.add(number)
        assert core.load().cached_tokens <= capacity
    completions |= run(core, slope=slope)
    assert set(completions) == set(range(len(asked))) - cancelled
    for number, completion in completions.items():
        request, kind = asked[number]
        assert bits(completion) == bits(world.expected[request])
        if kind in ("right", "long"):
            assert completion.accepted_draft_tokens == len(completion.token_ids)
    load = core.load()
    assert (load.running, load.waiting, load.speculative) == (0, 0, 0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("length", [30, 60, 120, 250, 500])
def test_a_next_turn_on_remembered_tokens_has_the_bits_of_a_cold_one(dtype, length):
    weights, rnd = world_of(dtype).weights, random.Random(length)
    core, prompt = Core(weights, Limits()), tuple(rnd.randrange(V) for _ in range(length))
    for turn in range(3):
        submit = Submit(turn, prompt, Sampling(max_tokens=12), turn, COMMITTED)
        warm, cold = run(core, [submit])[turn], run(Core(weights, Limits()), [submit])[turn]
        assert bits(warm) == bits(cold)
        prompt += (*warm.token_ids, *(rnd.randrange(V) for _ in range(9)))


def test_the_requests_are_worth_comparing():
    """Sampled ones differ from each other, end for both reasons, and cross size classes."""
    world = world_of(torch.float64)
    assert {c.finish_reason for c in world.expected} == {FinishReason.STOP, FinishReason.LENGTH}
    assert len({c.token_ids for c in world.expected}) > 12
    assert any(
        len(p) < 64 < len(p) + len(c.token_ids) for (p, *_), c in zip(world.requests, world.expected, strict=True)
    )


def steps_until_done(core, submit):
    core.apply(submit)
    steps = 0
    while core.busy:
        core.step()
        steps += 1
    return steps


def test_a_right_draft_takes_few_steps_and_a_wrong_one_costs_none():
    world = world_of(torch.float32)
    request = next(i for i, c in enumerate(world.expected) if len(c.token_ids) == 40 and len(world.requests[i][0]) < 20)
    steps = {
        kind: steps_until_done(
            Core(world.weights, Limits()), world.submit(0, request, draft=world.draft(request, kind, 0))
        )
        for kind in ("none", "right", "wrong")
    }
    assert steps == {"none": 40, "right": 3, "wrong": 40}


def test_prefixes_are_computed_once():
    world = world_of(torch.float32)
    core = Core(world.weights, Limits(batch_tokens=16))
    prompt, sampling = tuple(range(50)), Sampling(max_tokens=2)
    cold = steps_until_done(core, Submit(0, prompt, sampling, 1, COMMITTED))
    warm = steps_until_done(core, Submit(1, (*prompt, 3), sampling, 1, COMMITTED))
    assert (cold, warm) == (5, 2)


def test_remembered_prefixes_make_way_and_never_exceed_the_capacity():
    world = world_of(torch.float32)
    core = Core(world.weights, Limits(capacity_tokens=512))
    for number in range(6):
        core.apply(Submit(number, (number,) * 200, Sampling(max_tokens=3), number, COMMITTED))
        while core.busy:
            core.step()
            assert core.load().cached_tokens <= 512
    assert core.load().cached_tokens >= 202
    assert steps_until_done(core, Submit(9, (5,) * 200, Sampling(max_tokens=1), 0, COMMITTED)) == 1
    assert steps_until_done(core, Submit(9, (0,) * 200, Sampling(max_tokens=1), 0, COMMITTED)) == 3


def test_members_of_a_group_wait_for_their_common_prompt():
    world = world_of(torch.float32)
    core = Core(world.weights, Limits())
    for seed in range(4):
        core.apply(Submit(seed, tuple(range(40)), Sampling(max_tokens=9), seed, COMMITTED))
    core.step()
    assert (core.load().running, core.load().waiting) == (1, 3)
    core.step()
    assert (core.load().running, core.load().waiting) == (4, 0)
    assert len(run(core)) == 4


def test_committed_requests_go_before_speculative_ones_and_take_their_place():
    world = world_of(torch.float32)
    core = Core(world.weights, Limits(running=2))
    sampling = Sampling(max_tokens=30)
    for number in range(3):
        core.apply(Submit(number, (number,), sampling, number, SPECULATIVE))
    core.step()
    core.apply(Submit(3, (3,), sampling, 3, COMMITTED))
    core.apply(Promote(2))  # was waiting
    core.step()
    running = {r.number for r in core._scheduler.running}
    assert running == {2, 3}
    assert len(run(core)) == 4


def test_speculative_prompts_add_little_to_a_step_with_committed_requests():
    world = world_of(torch.float32)
    core = Core(world.weights, Limits(batch_tokens=512, speculative_tokens=8))
    core.apply(Submit(0, (1,), Sampling(max_tokens=20), 0, COMMITTED))
    core.apply(Submit(1, tuple(range(60)), Sampling(max_tokens=1), 0, SPECULATIVE))
    core.step()
    assert sum(r.computed for r in core._scheduler.running) == 1 + 8
    assert len(run(core)) == 2


def test_what_is_paused_keeps_what_it_has_and_goes_on_once_promoted_or_alone():
    world = world_of(torch.float32)
    core = experienced(Core(world.weights, Limits()))
    submits = [Submit(n, (n + 1,) * 5, Sampling(max_tokens=40), n, COMMITTED) for n in range(4)]
    alone = {s.request: run(Core(world.weights, Limits()), [s])[s.request] for s in submits}
    core.apply(replace(submits[2], priority=SPECULATIVE))
    core.apply(replace(submits[3], priority=SPECULATIVE))
    for _ in range(10):
        step(core, STEEP)
    paused = {r.number: r for r in core._scheduler.running}
    assert [paused[n].generated for n in (2, 3)] == [10, 10]
    core.apply(submits[0])
    core.apply(submits[1])
    step(core, STEEP)  # reads prompts: a step that is long anyway
    assert [paused[n].generated for n in (2, 3)] == [11, 11]
    for _ in range(10):
        step(core, STEEP)
    assert [paused[n].generated for n in (2, 3)] == [11, 11]
    assert core.load().running == 4  # they hold their places
    core.apply(Promote(2))
    for _ in range(10):
        step(core, STEEP)
    assert [paused[n].generated for n in (2, 3)] == [21, 11]
    completions = run(core, slope=STEEP)
    assert {n: bits(c) for n, c in completions.items()} == {n: bits(c) for n, c in alone.items()}


@settings(max_examples=20, deadline=None)
@given(
    submits=st.lists(
        st.tuples(st.sampled_from([COMMITTED, SPECULATIVE]), st.integers(1, 40), st.integers(1, 30)), max_size=12
    ),
    slope=st.sampled_from([0.0, 0.001, 0.003, STEEP]),
)
def test_committed_steps_get_slower_only_by_what_is_worth_it(submits, slope):
    core = experienced(Core(world_of(torch.float32).weights, Limits()), slope)
    for number, (priority, prompt, tokens) in enumerate(submits):
        core.apply(Submit(number, (number,) * prompt, Sampling(max_tokens=tokens), number, priority))
    while core.busy:
        before = {r.number: (r.priority, len(r.tokens), r.computed) for r in core._requests.values()}
        ended = {end.request for end in step(core, slope)}
        went_on = [
            priority
            for number, (priority, *known) in before.items()
            if number in ended or known != [len((r := core._requests[number]).tokens), r.computed]
        ]
        committed, speculative = went_on.count(COMMITTED), went_on.count(SPECULATIVE)
        assert went_on
        if committed and speculative:
            assert committed * slope <= CHANCE * (STEP + slope * core.step_rows) * 1.1
        if slope == 0.0:
            assert len(went_on) == len(before) - core.load().waiting


def test_a_cancelled_request_gives_back_everything_at_the_next_step():
    world = world_of(torch.float32)
    core = Core(world.weights, Limits())
    core.apply(Submit(0, tuple(range(20)), Sampling(max_tokens=90), 0, SPECULATIVE))
    for _ in range(10):
        core.step()
    assert core.load().cached_tokens > 20
    core.apply(Cancel(0))
    assert (core.load().cached_tokens, core.load().running, core.busy) == (0, 0, False)


def test_new_weights_drop_what_was_computed_and_restart_what_is_committed():
    old, new = tiny_models.qwen3(0), tiny_models.qwen3(9)
    weights = weights_of(old, torch.float32)
    core = Core(weights, Limits())
    sampling = Sampling(max_tokens=40)
    committed, speculative = (Submit(n, (5, 6, 7), sampling, 11, Priority(n)) for n in (0, 1))
    before = run(core, [committed])[0]
    core.apply(committed)
    core.apply(speculative)
    for _ in range(10):
        core.step()
    weights.load(dict(new.named_parameters()))
    dropped = core.update(1)
    assert [(end.request, end.cancelled) for end in dropped] == [(1, True)]
    assert core.load().cached_tokens == 0
    after = run(core)[0]
    fresh = run(Core(weights_of(new, torch.float32), Limits()), [committed])[0]
    assert bits(after) == bits(fresh)
    assert after.token_ids != before.token_ids
    assert (before.weights_version, after.weights_version) == (0, 1)


def test_unchanged_weights_make_a_restart_cheap():
    world = world_of(torch.float32)
    core = Core(world.weights, Limits())
    core.apply(Submit(0, (5, 6, 7), Sampling(max_tokens=40), 11, COMMITTED))
    for _ in range(30):
        core.step()
    core.update(1)
    steps = 0
    while core.busy:
        (*ends,) = core.step()
        steps += 1
    assert steps < 15
    assert ends[0].completion.accepted_draft_tokens == 30


def test_the_context_ends_a_completion():
    world = world_of(torch.float32)
    prompt = tuple(i % V for i in range(tiny_models.CONTEXT - 3))
    completion = run(Core(world.weights, Limits()), [Submit(0, prompt, Sampling(max_tokens=50), 0, COMMITTED)])[0]
    assert (len(completion.token_ids), completion.finish_reason) == (3, FinishReason.LENGTH)


def test_logits_that_are_not_numbers_fail_the_request():
    model = tiny_models.qwen3()
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    core = Core(weights_of(model, torch.float32), Limits())
    core.apply(Submit(0, (1, 2), Sampling(), 0, COMMITTED))
    (end,) = core.step()
    assert end.error == "the model's logits are not numbers"
    assert not core.busy
