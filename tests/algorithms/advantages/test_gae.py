"""The worked numbers of the recurrence, over turns and over action tokens."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from whetstone.algorithms import gae

NUMBERS = st.lists(st.tuples(st.floats(-2, 2), st.floats(-2, 2)), min_size=1, max_size=6)


def of(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def test_three_turns_that_came_to_an_end():
    advantages, targets = gae(of(0, 0.1, 1), of(0.5, 0.6, 0.8), discount=0.95, trace=0.9)
    assert advantages.tolist() == pytest.approx([0.438505, 0.431, 0.2])
    assert targets.tolist() == pytest.approx([0.938505, 1.031, 1.0])


def test_three_turns_that_were_cut_short():
    advantages, targets = gae(of(0, 0.1, 0), of(0.5, 0.6, 0.8), discount=0.95, trace=0.9, next_value=0.7)
    assert advantages.tolist() == pytest.approx([0.193612, 0.144575, -0.135], abs=1e-5)
    assert targets.tolist() == pytest.approx([0.693613, 0.744575, 0.665], abs=1e-5)


def test_action_tokens_with_observations_between_them():
    advantages, targets = gae(of(0, 0, 0, 1), of(0.1, 0.2, 0.4, 0.5), discount=0.9, trace=0.8)
    assert advantages.tolist() == pytest.approx([0.407744, 0.4552, 0.41, 0.5])
    assert targets.tolist() == pytest.approx([0.507744, 0.6552, 0.81, 1.0])


@given(steps=NUMBERS)
def test_without_discount_and_with_a_whole_trace_it_is_what_is_to_come_minus_the_value(steps):
    rewards, values = of(*(r for r, _ in steps)), of(*(v for _, v in steps))
    advantages, targets = gae(rewards, values, discount=1, trace=1)
    to_come = rewards.flip(0).cumsum(0).flip(0)
    assert torch.allclose(advantages, to_come - values)
    assert torch.allclose(targets, to_come)


def test_shapes_and_ranges_are_refused_in_one_line():
    with pytest.raises(ValueError, match=r"one value per reward: got \[2\] and \[1\]"):
        gae(of(0, 1), of(0))
    with pytest.raises(ValueError, match="discount and trace"):
        gae(of(1), of(0), discount=1.5)
