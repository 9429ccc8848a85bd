"""Stale tokens are left out, the largest gaps first."""

import math

import pytest

from tests_batches import of
from whetstone.algorithms.modulation import second_moment


def test_worked_numbers():
    # gaps .1 −.2 .05 1.5: without the last the mean square is .0175
    found = second_moment(of(1, -1, 2, 3), of(-0.9, -1.2, -0.95, 0.5), of(-1, -1, -1, -1))
    assert found.tolist() == [1, -1, 2, 0]
    assert of(0.1, -0.2, 0.05).square().mean().item() == pytest.approx(0.0175)


def test_tokens_of_the_present_policy_and_those_nobody_drew_stay():
    assert second_moment(of(1, 2), of(-1, -9), of(-1, math.nan)).tolist() == [1, 2]
    assert second_moment(of(), of(), of()).tolist() == []


def test_a_bound_is_above_zero():
    with pytest.raises(ValueError, match="bound is above 0"):
        second_moment(of(1), of(1), of(1), bound=0)
