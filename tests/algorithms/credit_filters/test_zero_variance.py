"""`zero_variance` removes groups with equal rewards."""

import torch

from support.batches import integers, of
from whetstone.algorithms import annotated_removal_scope
from whetstone.algorithms.credit_filters import zero_variance
from whetstone.trajectory import RemovalScope


def test_groups_with_different_rewards_stay():
    result = zero_variance(of(1, 1, 1, 0, 2), integers(0, 0, 1, 1, 2))
    assert result.tolist() == [0, 0, 1, 1, 1]  # a group of one has no variance
    assert result.dtype is torch.float64
    assert annotated_removal_scope(zero_variance) is RemovalScope.BEFORE_BASELINE


def test_minimum_deviation_is_an_option():
    assert zero_variance(of(1, 0.9), integers(0, 0), min_std=0.3).tolist() == [0, 0]
    assert zero_variance(of(1, 0), integers(0, 0), min_std=0.3).tolist() == [1, 1]
    # the population deviation is .25, the sample deviation would be .354
    assert zero_variance(of(0.5, 0), integers(0, 0), min_std=0.3).tolist() == [0, 0]
    assert zero_variance(of(), integers()).tolist() == []
