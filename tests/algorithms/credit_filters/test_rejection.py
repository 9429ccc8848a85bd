"""`rejection` selects own trajectories for imitation."""

import torch

from support.batches import integers, of
from whetstone.algorithms.credit_filters import rejection


def test_duplicates_and_trajectories_above_the_limit_are_removed():
    # the third has the actions of the first
    rewards, group, keys = of(1, 0, 1, 1), integers(0, 0, 0, 0), integers(0, 1, 0, 2)
    assert rejection(rewards, group, keys, of(5, 5, 5, 5), per_task=1).tolist() == [1, 0, 0, 0]
    assert rejection(rewards, group, keys, of(5, 5, 5, 5)).tolist() == [1, 0, 0, 1]


def test_ties_keep_the_shorter_trajectory():
    assert rejection(of(1, 1), integers(0, 0), integers(0, 1), of(9, 5), per_task=1).tolist() == [0, 1]


def test_higher_reward_precedes_shorter_length():
    assert rejection(of(1, 2), integers(0, 0), integers(0, 1), of(5, 9), per_task=1).tolist() == [0, 1]


def test_ties_of_equal_length_keep_the_earlier_trajectory():
    assert rejection(of(1, 1), integers(0, 0), integers(0, 1), of(5, 5), per_task=1).tolist() == [1, 0]


def test_threshold_is_inclusive():
    result = rejection(of(0.4, 0.5, 0.6), integers(0, 0, 0), integers(0, 1, 2), of(5, 5, 5), threshold=0.5)
    assert result.tolist() == [0, 1, 1]
    assert result.dtype is torch.float64


def test_limit_applies_per_task():
    assert rejection(of(1, 1), integers(0, 1), integers(0, 0), of(1, 1), per_task=1).tolist() == [1, 1]
