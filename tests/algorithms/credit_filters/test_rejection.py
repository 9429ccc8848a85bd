"""What is worth imitating of one's own."""

import torch

from tests_batches import of, whole
from whetstone.algorithms.credit_filters import rejection


def test_duplicates_and_a_bound():
    # the third did what the first did
    rewards, group, keys = of(1, 0, 1, 1), whole(0, 0, 0, 0), whole(0, 1, 0, 2)
    assert rejection(rewards, group, keys, of(5, 5, 5, 5), per_task=1).tolist() == [1, 0, 0, 0]
    assert rejection(rewards, group, keys, of(5, 5, 5, 5)).tolist() == [1, 0, 0, 1]


def test_of_equally_good_ones_the_shorter_stays():
    assert rejection(of(1, 1), whole(0, 0), whole(0, 1), of(9, 5), per_task=1).tolist() == [0, 1]


def test_the_better_one_stays_though_it_is_longer():
    assert rejection(of(1, 2), whole(0, 0), whole(0, 1), of(5, 9), per_task=1).tolist() == [0, 1]


def test_of_equally_good_and_long_ones_the_earlier_stays():
    assert rejection(of(1, 1), whole(0, 0), whole(0, 1), of(5, 5), per_task=1).tolist() == [1, 0]


def test_what_does_not_reach_the_threshold_goes_and_what_just_does_stays():
    found = rejection(of(0.4, 0.5, 0.6), whole(0, 0, 0), whole(0, 1, 2), of(5, 5, 5), threshold=0.5)
    assert found.tolist() == [0, 1, 1]
    assert found.dtype is torch.float64


def test_each_task_has_its_own_bound():
    assert rejection(of(1, 1), whole(0, 1), whole(0, 0), of(1, 1), per_task=1).tolist() == [1, 1]
