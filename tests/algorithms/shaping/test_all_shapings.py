"""What holds for every shaping: it says what loops over floats say, in the whole width, and writes nowhere."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests_batches import asked, batches, columns
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
    found = []
    for m, (r, i) in enumerate(zip(c["process_rewards"], c["trajectory"], strict=True)):
        first = m == 0 or c["trajectory"][m - 1] != i
        found.append(r if first else r + weight * (r - c["process_rewards"][m - 1]))
    return found


def drawn(data, name):
    return columns(data.draw(batches())), {key: data.draw(option) for key, option in OPTIONS[name].items()}


@EVERY
@FEW
@given(data=st.data())
def test_it_says_what_loops_over_floats_say(name, data):
    found, options = drawn(data, name)
    expected = globals()[name]({key: column.tolist() for key, column in found.items()}, **options)
    assert asked(SHAPING[name], found, **options).tolist() == pytest.approx(expected, rel=1e-9, abs=1e-12)


@EVERY
@FEW
@given(data=st.data())
def test_columns_of_half_the_width_are_computed_with_in_the_whole_width_and_none_is_written_to(name, data):
    found, options = drawn(data, name)
    narrow = {key: column.float() if column.is_floating_point() else column for key, column in found.items()}
    wide = {key: column.double() if column.is_floating_point() else column for key, column in narrow.items()}
    kept = {key: column.clone() for key, column in wide.items()}
    said = asked(SHAPING[name], narrow, **options)
    assert said.dtype is torch.float64
    assert torch.equal(said, asked(SHAPING[name], wide, **options))
    assert all(torch.equal(wide[key].nan_to_num(-1), column.nan_to_num(-1)) for key, column in kept.items())
