"""What holds for every correction: it says what loops over Python floats say, and has no gradient."""

import inspect
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests_batches import of, whole
from whetstone.algorithms import CORRECTIONS, importance_weights

FEW = settings(max_examples=min(40, settings.default.max_examples), deadline=None)
EVERY = pytest.mark.parametrize("name", sorted(CORRECTIONS))
TOKENS = st.lists(st.tuples(st.floats(-30, 0), st.floats(-30, 0) | st.just(math.nan), st.integers(0, 2)), min_size=1)
"""(before the update, as drawn, sequence) of each."""
BOUND = st.floats(1.01, 8)


def gap(old, drawn):
    return 0.0 if math.isnan(drawn) else old - drawn


def bounded(log_ratio):
    return math.exp(min(max(log_ratio, -20.0), 20.0))


def gaps_of(tokens, sequence):
    return [gap(old, drawn) for old, drawn, of_sequence in tokens if of_sequence == sequence]


def truncated(tokens, high):
    return [min(bounded(gap(old, drawn)), high) for old, drawn, _ in tokens]


def masked(tokens, high):
    weights = [bounded(gap(old, drawn)) for old, drawn, _ in tokens]
    return [0.0 if w > high else w for w in weights]


def sequence_truncated(tokens, high):
    return [min(bounded(sum(gaps_of(tokens, i))), high) for _, _, i in tokens]


def sequence_masked(tokens, high):
    weights = [bounded(sum(gaps_of(tokens, i))) for _, _, i in tokens]
    return [0.0 if w > high else w for w in weights]


def geometric(tokens, high):
    found = []
    for (_, _, i), weight in zip(tokens, truncated(tokens, high), strict=True):
        mean = math.exp(sum(gaps_of(tokens, i)) / len(gaps_of(tokens, i)))
        found.append(weight if 0.99 <= mean <= 1.01 else 0.0)
    return found


def said(name, tokens, **options):
    given = [of(*(old for old, _, _ in tokens)), of(*(drawn for _, drawn, _ in tokens))]
    if "sequence" in inspect.signature(CORRECTIONS[name]).parameters:
        given.append(whole(*(i for _, _, i in tokens)))
    return CORRECTIONS[name](*given, **options)


@EVERY
@FEW
@given(tokens=TOKENS, high=BOUND)
def test_it_says_what_loops_over_floats_say(name, tokens, high):
    found = said(name, tokens, high=high)
    assert found.tolist() == pytest.approx(globals()[name](tokens, high), rel=1e-9, abs=1e-12)


@EVERY
def test_a_weight_has_no_gradient(name):
    old, drawn, sequence = of(-1, -2).requires_grad_(), of(-1.001, -2), whole(0, 0)
    given = [old, drawn, sequence][: 3 if "sequence" in inspect.signature(CORRECTIONS[name]).parameters else 2]
    assert not CORRECTIONS[name](*given).requires_grad


@EVERY
def test_a_weight_at_its_bound_is_within_it(name):
    # both policies say the same: the weight is exactly 1
    bounds = {"geometric": {"width": 0.0}, "masked": {"low": 1.0}}.get(name, {"high": 1.0})
    assert said(name, [(-1.0, -1.0, 0), (-2.0, -2.0, 0)], **bounds).tolist() == [1, 1]
    assert said("masked", [(-1.0, -1.0, 0)], low=0.0, high=1.0).tolist() == [1]


def test_no_single_weight_is_more_than_that_of_twenty_nats():
    assert importance_weights(of(0, -30), of(-30, 0)).tolist() == pytest.approx([math.exp(20), math.exp(-20)])


@EVERY
def test_columns_of_two_lengths_are_refused_with_both(name):
    given = [of(1, 2), of(1, 2, 3), whole(0, 0)]
    count = 3 if "sequence" in inspect.signature(CORRECTIONS[name]).parameters else 2
    with pytest.raises(ValueError, match=r"one sampler log-prob per token: got .*\[2\], \[3\]"):
        CORRECTIONS[name](*given[:count])
