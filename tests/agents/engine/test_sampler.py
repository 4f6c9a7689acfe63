"""Addressed noise: exact distributions, and nothing but (logits, seed, index) counts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
stats = pytest.importorskip("scipy.stats")

from obsspec_gym.agents.engine.embedded.sampler import Draw, Sampler, noise_key, process  # noqa: E402
from obsspec_gym.types import Sampling  # noqa: E402

V = 24
CPU = torch.device("cpu")


def logits_of(seed, rows=1, scale=1.5, dtype=torch.float32):
    return torch.randn((rows, V), generator=torch.Generator().manual_seed(seed), dtype=dtype) * scale


SAMPLINGS = [
    Sampling(),
    Sampling(temperature=0.6),
    Sampling(top_k=5),
    Sampling(top_p=0.8),
    Sampling(temperature=1.4, top_k=12, top_p=0.7),
]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("by", ["seed", "index"])
def test_picks_follow_the_processed_distribution(sampling, by):
    n = 10_000
    logits = logits_of(1)
    draws = [Draw(sampling, i, 0) if by == "seed" else Draw(sampling, 5, i) for i in range(n)]
    tokens, _ = Sampler(V, CPU).pick(logits.expand(n, V), draws)
    probabilities = torch.softmax(process(logits, [sampling]).double(), -1)[0].numpy()
    counts = np.bincount(tokens, minlength=V)
    assert counts[probabilities == 0].sum() == 0
    kept = probabilities > 0
    assert stats.chisquare(counts[kept], n * probabilities[kept] / probabilities[kept].sum()).pvalue > 1e-3


def test_picks_of_neighbouring_seeds_and_indices_are_independent():
    n = 10_000
    sampler, flat = Sampler(V, CPU), torch.zeros(n, V)
    for other in (Draw(Sampling(), 1, 0), Draw(Sampling(), 0, 1)):
        step_seed, step_index = other.seed, other.index
        first, _ = sampler.pick(flat, [Draw(Sampling(), 7 * i, 0) for i in range(n)])
        second, _ = sampler.pick(flat, [Draw(Sampling(), 7 * i + step_seed, step_index) for i in range(n)])
        table = np.histogram2d(first, second, bins=[np.arange(0, V + 1, 4)] * 2)[0]
        assert stats.chi2_contingency(table).pvalue > 1e-3


def test_noise_is_exponential_and_never_zero():
    noise = Sampler(1000, CPU).exponentials([noise_key(3, i) for i in range(100)])
    assert (noise > 0).all()
    assert noise.isfinite().all()
    assert stats.kstest(noise.double().flatten().numpy(), "expon").pvalue > 1e-3


def test_keys_are_distinct_also_where_seeds_and_indices_are_close():
    gamma = 0x9E3779B97F4A7C15
    seeds = [*range(300), *((gamma * i) % 2**63 for i in range(1, 300))]
    keys = {noise_key(seed, index) for seed in seeds for index in range(100)}
    assert len(keys) == len(seeds) * 100


samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.5, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 3, V, 2 * V]),
    top_p=st.sampled_from([0.1, 0.5, 0.95, 1.0]),
)
draws = st.builds(Draw, samplings, st.integers(0, 2**63 - 1), st.integers(0, 10_000))


@settings(max_examples=60, deadline=None)
@given(st.lists(draws, min_size=1, max_size=9), st.integers(0, 99), st.sampled_from([torch.float32, torch.float64]))
def test_a_row_is_picked_alone_as_in_company(rows, seed, dtype):
    logits, sampler = logits_of(seed, len(rows), dtype=dtype), Sampler(V, CPU)
    tokens, logprobs = sampler.pick(logits, rows)
    alone = [sampler.pick(logits[i : i + 1], [draw]) for i, draw in enumerate(rows)]
    assert tokens == [t[0] for t, _ in alone]
    assert logprobs == [lp[0] for _, lp in alone]


@settings(max_examples=100, deadline=None)
@given(samplings, st.integers(0, 99))
def test_processing_is_what_its_definition_says(sampling, seed):
    logits = logits_of(seed, dtype=torch.float64)
    got = torch.softmax(process(logits, [sampling]), -1)[0].tolist()
    p = torch.softmax(logits[0] / (sampling.temperature or 1.0), -1).tolist()
    kept = sorted(range(V), key=lambda i: -p[i])[: sampling.top_k or V]
    total, chosen, mass = sum(p[i] for i in kept), [], 0.0
    for i in kept:
        if mass >= sampling.top_p:
            break
        chosen.append(i)
        mass += p[i] / total
    expected = [p[i] / sum(p[j] for j in chosen) if i in chosen else 0.0 for i in range(V)]
    assert got == pytest.approx(expected, abs=1e-12)


def test_greedy_takes_the_lower_id_on_a_tie_and_reports_temperature_one():
    logits = torch.tensor([[0.0, 2.0, 2.0, 1.0]])
    tokens, logprobs = Sampler(4, CPU).pick(logits, [Draw(Sampling(temperature=0), 9, 9)])
    assert tokens == [1]
    assert logprobs == pytest.approx([torch.log_softmax(logits, -1)[0, 1].item()])


def test_what_is_not_a_number_shows_in_the_logprob():
    logits = torch.tensor([[0.0, float("nan"), 1.0]])
    assert np.isnan(Sampler(3, CPU).pick(logits, [Draw(Sampling(), 0, 0)])[1][0])
