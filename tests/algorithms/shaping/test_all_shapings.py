"""Properties of every reward shaping: agreement with loops over floats, precision, and no in-place changes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.batches import batches, call_with_columns, columns
from whetstone.algorithms import SHAPING

FEW = settings(max_examples=min(40, settings.default.max_examples), deadline=None)
EVERY = pytest.mark.parametrize("name", sorted(SHAPING))
OPTIONS = {
    "gated": {"threshold": st.sampled_from([-0.5, 0.5, 1.0]), "weight": st.sampled_from([0.3, 1.0])},
    "kl_penalty": {"weight": st.sampled_from([0.01, 0.3])},
    "overlong": {
        "limit": st.sampled_from([4, 7]),
        "buffer": st.sampled_from([1, 3, 4]),
        "penalty": st.sampled_from([0.3, 1.0]),
    },
    "second_attempt_only": {},
    "self_correction": {"weight": st.sampled_from([0.3, 10.0])},
}


def gated(c, threshold, weight):
    pairs = zip(c["process_rewards"], c["trajectory"], strict=True)
    return [weight * r if c["outcomes"][i] > threshold else 0.0 for r, i in pairs]


def kl_penalty(c, weight):
    rows = zip(c["token_rewards"], c["old_logprobs"], c["reference_logprobs"], strict=True)
    return [r - weight * (old - reference) for r, old, reference in rows]


def overlong(c, limit, buffer, penalty):
    pairs = zip(c["outcomes"], c["lengths"], strict=True)
    return [r - penalty * min(max((n - (limit - buffer)) / buffer, 0.0), 1.0) for r, n in pairs]


def second_attempt_only(c):
    return [0.0 if first else r for r, first in zip(c["process_rewards"], c["first_attempt"], strict=True)]


def self_correction(c, weight):
    rewards = []
    for m, (r, i) in enumerate(zip(c["process_rewards"], c["trajectory"], strict=True)):
        first = m == 0 or c["trajectory"][m - 1] != i
        rewards.append(r if first else r + weight * (r - c["process_rewards"][m - 1]))
    return rewards


def sample_inputs(data, name):
    return columns(data.draw(batches())), {key: data.draw(option) for key, option in OPTIONS[name].items()}


@EVERY
@FEW
@given(data=st.data())
def test_shaping_equals_loops_over_floats(name, data):
    inputs, options = sample_inputs(data, name)
    expected = globals()[name]({key: column.tolist() for key, column in inputs.items()}, **options)
    assert call_with_columns(SHAPING[name], inputs, **options).tolist() == pytest.approx(expected, rel=1e-9, abs=1e-12)


@EVERY
@FEW
@given(data=st.data())
def test_half_precision_columns_are_computed_in_full_precision_and_not_modified(name, data):
    result, options = sample_inputs(data, name)
    narrow = {key: column.float() if column.is_floating_point() else column for key, column in result.items()}
    wide = {key: column.double() if column.is_floating_point() else column for key, column in narrow.items()}
    copies = {key: column.clone() for key, column in wide.items()}
    rewards = call_with_columns(SHAPING[name], narrow, **options)
    assert rewards.dtype is torch.float64
    assert torch.equal(rewards, call_with_columns(SHAPING[name], wide, **options))
    assert all(torch.equal(wide[key].nan_to_num(-1), column.nan_to_num(-1)) for key, column in copies.items())
