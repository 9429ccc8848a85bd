"""Stale tokens are left out, the largest gaps first."""

import math

import pytest

from tests_batches import of
from whetstone.algorithms.advantage_transforms import m2po


def test_worked_numbers():
    # gaps .1 −.2 .05 1.5: without the last the mean square is .0175
    result = m2po(of(1, -1, 2, 3), of(-0.9, -1.2, -0.95, 0.5), of(-1, -1, -1, -1))
    assert result.tolist() == [1, -1, 2, 0]
    assert of(0.1, -0.2, 0.05).square().mean().item() == pytest.approx(0.0175)


def test_tokens_of_the_present_policy_and_those_nobody_drew_stay():
    assert m2po(of(1, 2), of(-1, -9), of(-1, math.nan)).tolist() == [1, 2]
    assert m2po(of(), of(), of()).tolist() == []


def test_the_token_with_the_smallest_gap_stays_however_far_all_of_them_are():
    assert m2po(of(1, 2, 3), of(-0.4, -0.5, -3), of(-1, -1, -1)).tolist() == [0, 2, 0]
    assert m2po(of(7), of(-9), of(-1)).tolist() == [7]


def test_what_nobody_drew_makes_no_room_for_what_somebody_did():
    # gaps .25 and none: the mean of the one that was drawn is .0625, with the other it would be half of it
    result = m2po(of(1, 2, 3), of(-0.75, -5, -0.99), of(-1, math.nan, -1), bound=0.03)
    assert result.tolist() == [0, 2, 3]


def test_a_mean_square_at_the_bound_is_beyond_it():
    assert m2po(of(1, 2), of(-0.75, -0.75), of(-1, -1), bound=0.0625).tolist() == [1, 0]


def test_a_bound_is_above_zero():
    with pytest.raises(ValueError, match="bound is above 0"):
        m2po(of(1), of(1), of(1), bound=0)
