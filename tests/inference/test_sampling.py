"""Sampling follows the requested distribution and returns log-probs under it and under the model."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from whetstone.inference import Sampling
from whetstone.inference.sampling import hash_to_uniforms, sample_tokens

# probabilities 0.5, 0.3, 0.15, 0.05
LOGITS = torch.tensor([[math.log(0.5), math.log(0.3), math.log(0.15), math.log(0.05)]])


def sample(sampling, logits=LOGITS, n=4000):
    rows = [Sampling(1, **{**sampling, "seed": i}) for i in range(n)]
    return sample_tokens(logits.repeat(n, 1), rows, [0] * n)


def frequencies(sampling, **options):
    samples = sample(sampling, **options)
    return (torch.bincount(samples.tokens, minlength=4) / len(samples.tokens)).tolist()


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ({}, [0.5, 0.3, 0.15, 0.05]),
        ({"top_k": 2}, [0.625, 0.375, 0, 0]),  # 0.5 / 0.8, 0.3 / 0.8
        ({"top_p": 0.6}, [0.625, 0.375, 0, 0]),  # 0.5 is below 0.6, so the second stays
        ({"top_p": 0.5}, [1, 0, 0, 0]),
        ({"min_p": 0.25}, [0.526, 0.316, 0.158, 0]),  # a quarter of 0.5 is 0.125; over 0.95
        ({"top_k": 3, "top_p": 0.5}, [1, 0, 0, 0]),  # 0.5 / 0.95 is already above 0.5
        ({"temperature": 0}, [1, 0, 0, 0]),
        ({"temperature": 0.5}, [0.685, 0.247, 0.062, 0.007]),  # squares 0.25, 0.09, 0.0225, 0.0025 over 0.365
        ({"logit_bias": {0: -math.inf}}, [0, 0.6, 0.3, 0.1]),
        ({"logit_bias": {3: math.log(10)}}, [0.345, 0.207, 0.103, 0.345]),  # 0.05 becomes 0.5; over 1.45
    ],
)
def test_samples_follow_the_requested_distribution(sampling, expected):
    assert frequencies(sampling) == pytest.approx(expected, abs=0.03)
    samples = sample(sampling, n=50)
    for token, logprob, model_logprob in zip(
        samples.tokens.tolist(), samples.logprobs.tolist(), samples.model_logprobs.tolist(), strict=True
    ):
        assert math.exp(logprob) == pytest.approx(expected[token], abs=1e-3)
        assert model_logprob == pytest.approx(LOGITS[0, token].item(), abs=1e-5)


def test_impossible_tokens_are_never_sampled():
    logits = torch.tensor([[0.0, -math.inf, 0.0, -math.inf]])
    assert frequencies({}, logits=logits)[1::2] == [0, 0]


def test_entropy_is_of_the_sampling_distribution():
    # 0.5 ln 2 + 0.3 ln(10/3) + 0.15 ln(20/3) + 0.05 ln 20 = 0.346574 + 0.361192 + 0.284568 + 0.149787
    assert sample({}, n=1).entropies.item() == pytest.approx(1.142121, abs=1e-5)
    # of 0.625 and 0.375: 0.293752 + 0.367811
    assert sample({"top_k": 2}, n=1).entropies.item() == pytest.approx(0.661563, abs=1e-5)
    assert sample({"temperature": 0}, n=1).entropies.item() == pytest.approx(1.142121, abs=1e-5)


def test_forced_token_is_returned_with_its_log_prob():
    rows = [Sampling(2, forced=(3,)), Sampling(2, forced=(3,), temperature=0), Sampling(2, forced=(3,), top_k=1)]
    samples = sample_tokens(LOGITS.repeat(3, 1), rows, [0, 0, 0])
    assert samples.tokens.tolist() == [3, 3, 3]
    assert samples.logprobs.tolist() == [pytest.approx(math.log(0.05)), -math.inf, -math.inf]
    assert samples.model_logprobs.tolist() == [pytest.approx(math.log(0.05))] * 3
    assert sample_tokens(LOGITS, [Sampling(2, forced=(3,), temperature=0)], [1]).tokens.tolist() == [0]


settings_of_rows = st.builds(
    Sampling,
    max_new_tokens=st.just(1),
    temperature=st.sampled_from([0, 0.5, 1, 2]),
    top_k=st.integers(0, 6),
    top_p=st.sampled_from([0.3, 0.9, 1]),
    min_p=st.sampled_from([0, 0.2]),
    logit_bias=st.dictionaries(st.integers(0, 4), st.floats(-3, 3, width=32), max_size=2),
    seed=st.integers(0, 9),
)


@given(st.lists(settings_of_rows, min_size=1, max_size=5), st.integers(0, 99))
def test_sequences_are_sampled_independently_of_the_batch(rows, seed):
    logits = torch.randn(len(rows), 5, generator=torch.Generator().manual_seed(seed))
    together = sample_tokens(logits, rows, list(range(len(rows))))
    for i, row in enumerate(rows):
        alone = sample_tokens(logits[i : i + 1], [row], [i])
        assert alone.tokens.item() == together.tokens[i].item()
        assert alone.logprobs.item() == together.logprobs[i].item()
        assert alone.entropies.item() == together.entropies[i].item()
        assert together.logprobs[i].item() > -math.inf


def test_random_numbers_are_uniform_over_seeds_and_positions():
    for seeds, places in ((np.arange(10_000), np.zeros(10_000)), (np.full(10_000, 3), np.arange(10_000))):
        numbers = hash_to_uniforms(seeds.astype(np.uint64), places.astype(np.uint64))
        assert ((numbers >= 0) & (numbers < 1)).all()
        counts = torch.histc(numbers, bins=10, min=0, max=1)
        assert ((counts - 1000).abs() < 130).all()  # four standard deviations of a bin are 120


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -0.1},
        {"max_new_tokens": 0},
        {"top_k": -1},
        {"top_p": 0},
        {"min_p": 1.5},
        {"stop_strings": ("", "x")},
    ],
)
def test_impossible_sampling_is_refused_by_name(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Sampling(**{"max_new_tokens": 1, **wrong})


@pytest.mark.parametrize("vocabulary", [1, 97, 1024, 1025, 5000])
@pytest.mark.parametrize("spread", [0.0, 1.0, 20.0])
def test_token_is_the_inverse_of_the_cumulative_distribution_for_any_vocabulary(vocabulary, spread):
    numbers = torch.Generator().manual_seed(vocabulary)
    logits = torch.randn(64, vocabulary, generator=numbers) * spread
    logits[32:, torch.rand(vocabulary, generator=numbers) < 0.7] = -torch.inf
    logits[32:, vocabulary // 2] = 0.0  # at least one remains, and the last block can be empty
    tokens = sample_tokens(logits, [Sampling(1, seed=i) for i in range(64)], [3] * 64).tokens
    probabilities = logits.log_softmax(-1).exp()
    sums = probabilities.double().cumsum(-1)
    thresholds = hash_to_uniforms(np.arange(64), np.full(64, 3, dtype=np.uint64)) * sums[:, -1]
    expected = torch.searchsorted(sums, thresholds.unsqueeze(1), right=True).squeeze(1)
    assert tokens.tolist() == expected.tolist()
    assert (probabilities.gather(1, tokens.unsqueeze(1)) > 0).all()


def test_disallowed_tokens_are_never_sampled_and_log_probs_are_renormalized():
    """Keep the first and third of logits 0, 1, 2, 3: e²/(1 + e²) for the third."""
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0]]).repeat(200, 1)
    rows = [Sampling(1, seed=i) for i in range(200)]
    samples = sample_tokens(
        logits, rows, [0] * 200, [np.array([True, False, True])] * 200
    )  # tokens beyond the mask are disallowed
    assert set(samples.tokens.tolist()) == {0, 2}
    likely = math.exp(2) / (1 + math.exp(2))
    for token, logprob in zip(samples.tokens.tolist(), samples.logprobs.tolist(), strict=True):
        assert logprob == pytest.approx(math.log(likely if token == 2 else 1 - likely), abs=1e-5)
    alone = sample_tokens(logits[:1], rows[:1], [0], [np.array([False, True, False, False])])
    assert (alone.tokens.tolist(), alone.logprobs.tolist()) == ([1], [0.0])


def test_top_log_probs_are_ordered_and_independent_of_the_sample():
    logits = torch.tensor([[0.0, 3.0, 1.0, 2.0], [0.0, 3.0, 1.0, 2.0]])
    named, none = sample_tokens(logits, [Sampling(1, temperature=0.5, top_logprobs=2), Sampling(1)], [0, 0]).tops
    assert list(named) == [1, 3]
    assert list(named.values()) == pytest.approx(torch.log_softmax(logits[0], -1)[[1, 3]].tolist())
    assert none == {}


def test_blockwise_sampling_of_a_large_vocabulary_equals_sampling_per_sequence():
    logits = torch.randn(7, 130_001, generator=torch.Generator().manual_seed(0)) * 4
    samplings = [Sampling(4, seed=i, temperature=[1.0, 0.0, 0.5][i % 3], top_logprobs=i % 2) for i in range(7)]
    allowed = [None] * 6 + [np.arange(130_001) % 3 == 0]
    batch = sample_tokens(logits, samplings, range(7), allowed)
    for i, row in enumerate(batch.iterate_tokens()):
        (alone,) = sample_tokens(logits[i : i + 1], samplings[i : i + 1], [i], allowed[i : i + 1]).iterate_tokens()
        assert row.token == alone.token
        assert row.logprob == pytest.approx(alone.logprob, abs=1e-5)
        assert row.entropy == pytest.approx(alone.entropy, rel=1e-5)
        assert row.top.keys() == alone.top.keys()
    assert allowed[6][batch.tokens[6]]
