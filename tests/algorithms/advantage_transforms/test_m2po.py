"""`m2po` removes stale tokens, those with the largest log-ratio first."""

import math

import pytest

from support.batches import of
from whetstone.algorithms.advantage_transforms import m2po


def test_worked_numbers():
    # gaps .1 −.2 .05 1.5: without the last the mean square is .0175
    result = m2po(of(1, -1, 2, 3), of(-0.9, -1.2, -0.95, 0.5), of(-1, -1, -1, -1))
    assert result.tolist() == [1, -1, 2, 0]
    assert of(0.1, -0.2, 0.05).square().mean().item() == pytest.approx(0.0175)


def test_tokens_of_the_current_policy_and_unsampled_tokens_stay():
    assert m2po(of(1, 2), of(-1, -9), of(-1, math.nan)).tolist() == [1, 2]
    assert m2po(of(), of(), of()).tolist() == []


def test_token_with_the_smallest_gap_stays_even_above_the_bound():
    assert m2po(of(1, 2, 3), of(-0.4, -0.5, -3), of(-1, -1, -1)).tolist() == [0, 2, 0]
    assert m2po(of(7), of(-9), of(-1)).tolist() == [7]


def test_unsampled_tokens_do_not_lower_the_mean_of_sampled_tokens():
    # gaps .25 and none: the mean over the sampled token is .0625, over both tokens it would be half of it
    result = m2po(of(1, 2, 3), of(-0.75, -5, -0.99), of(-1, math.nan, -1), bound=0.03)
    assert result.tolist() == [0, 2, 3]


def test_mean_square_equal_to_the_bound_exceeds_it():
    assert m2po(of(1, 2), of(-0.75, -0.75), of(-1, -1), bound=0.0625).tolist() == [1, 0]


def test_bound_of_zero_is_refused():
    with pytest.raises(ValueError, match="bound must be above 0"):
        m2po(of(1), of(1), of(1), bound=0)
