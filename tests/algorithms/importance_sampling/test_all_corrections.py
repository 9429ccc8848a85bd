"""Properties of every importance-sampling correction: agreement with loops over floats, and no gradient."""

import inspect
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.batches import integers, of
from whetstone.algorithms import CORRECTIONS, importance_weights

FEW = settings(max_examples=min(40, settings.default.max_examples), deadline=None)
EVERY = pytest.mark.parametrize("name", sorted(CORRECTIONS))
TOKENS = st.lists(st.tuples(st.floats(-30, 0), st.floats(-30, 0) | st.just(math.nan), st.integers(0, 2)), min_size=1)
"""(old log-prob, sampler log-prob, sequence) per token."""
BOUND = st.floats(1.01, 8)


def gap(old, sampled):
    return 0.0 if math.isnan(sampled) else old - sampled


def bounded(log_ratio):
    return math.exp(min(max(log_ratio, -20.0), 20.0))


def gaps_of(tokens, sequence):
    return [gap(old, sampled) for old, sampled, of_sequence in tokens if of_sequence == sequence]


def truncated(tokens, high):
    return [min(bounded(gap(old, sampled)), high) for old, sampled, _ in tokens]


def masked(tokens, high):
    weights = [bounded(gap(old, sampled)) for old, sampled, _ in tokens]
    return [0.0 if w > high else w for w in weights]


def sequence_truncated(tokens, high):
    return [min(bounded(sum(gaps_of(tokens, i))), high) for _, _, i in tokens]


def sequence_masked(tokens, high):
    weights = [bounded(sum(gaps_of(tokens, i))) for _, _, i in tokens]
    return [0.0 if w > high else w for w in weights]


def geometric(tokens, high):
    weights = []
    for (_, _, i), weight in zip(tokens, truncated(tokens, high), strict=True):
        mean = math.exp(sum(gaps_of(tokens, i)) / len(gaps_of(tokens, i)))
        weights.append(weight if 0.99 <= mean <= 1.01 else 0.0)
    return weights


def correct(name, tokens, **options):
    inputs = [of(*(old for old, _, _ in tokens)), of(*(sampled for _, sampled, _ in tokens))]
    if "sequence" in inspect.signature(CORRECTIONS[name]).parameters:
        inputs.append(integers(*(i for _, _, i in tokens)))
    return CORRECTIONS[name](*inputs, **options)


@EVERY
@FEW
@given(tokens=TOKENS, high=BOUND)
def test_correction_equals_loops_over_floats(name, tokens, high):
    weights = correct(name, tokens, high=high)
    assert weights.tolist() == pytest.approx(globals()[name](tokens, high), rel=1e-9, abs=1e-12)


@EVERY
def test_weights_have_no_gradient(name):
    old, sampled, sequence = of(-1, -2).requires_grad_(), of(-1.001, -2), integers(0, 0)
    inputs = [old, sampled, sequence][: 3 if "sequence" in inspect.signature(CORRECTIONS[name]).parameters else 2]
    assert not CORRECTIONS[name](*inputs).requires_grad


@EVERY
def test_weight_equal_to_its_bound_is_within_it(name):
    # both policies agree: the weight is exactly 1
    bounds = {"geometric": {"width": 0.0}, "masked": {"low": 1.0}}.get(name, {"high": 1.0})
    assert correct(name, [(-1.0, -1.0, 0), (-2.0, -2.0, 0)], **bounds).tolist() == [1, 1]
    assert correct("masked", [(-1.0, -1.0, 0)], low=0.0, high=1.0).tolist() == [1]


def test_log_weights_are_clipped_at_twenty_nats():
    assert importance_weights(of(0, -30), of(-30, 0)).tolist() == pytest.approx([math.exp(20), math.exp(-20)])


@EVERY
def test_columns_of_different_lengths_are_refused(name):
    inputs = [of(1, 2), of(1, 2, 3), integers(0, 0)]
    count = 3 if "sequence" in inspect.signature(CORRECTIONS[name]).parameters else 2
    with pytest.raises(ValueError, match=r"must have the same shape, got .*\[2\].*\[3\]"):
        CORRECTIONS[name](*inputs[:count])
