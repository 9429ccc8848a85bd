"""Groups that say nothing."""

import torch

from tests_batches import of, whole
from whetstone.algorithms import removal_scope_of
from whetstone.algorithms.credit_filters import zero_variance
from whetstone.trajectory import RemovalScope


def test_groups_whose_rewards_differ_stay():
    found = zero_variance(of(1, 1, 1, 0, 2), whole(0, 0, 1, 1, 2))
    assert found.tolist() == [0, 0, 1, 1, 1]  # one alone has nothing to differ from
    assert found.dtype is torch.float64
    assert removal_scope_of(zero_variance) is RemovalScope.BEFORE_BASELINE


def test_a_least_deviation():
    assert zero_variance(of(1, 0.9), whole(0, 0), min_std=0.3).tolist() == [0, 0]
    assert zero_variance(of(1, 0), whole(0, 0), min_std=0.3).tolist() == [1, 1]
    # the population's: a quarter, the sample's would be .354
    assert zero_variance(of(0.5, 0), whole(0, 0), min_std=0.3).tolist() == [0, 0]
    assert zero_variance(of(), whole()).tolist() == []
