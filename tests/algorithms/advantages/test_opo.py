"""OPO: the baseline is weighted by length."""

import pytest

from support.batches import integers, of
from whetstone.algorithms.advantages import group_relative, opo


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


def test_worked_numbers():
    # (10·1 + 20·0.5) / 100 = 0.2
    advantages = opo(of(1, 0, 0.5, 0), integers(0, 0, 0, 0), of(10, 30, 20, 40))
    assert advantages.tolist() == near(0.8, -0.2, 0.3, -0.2)


def test_equal_lengths_give_the_plain_mean():
    rewards, group = of(1, 0, 0.5, 0), integers(0, 0, 0, 0)
    assert opo(rewards, group, of(7, 7, 7, 7)).tolist() == near(*group_relative(rewards, group, scale=False).tolist())


def test_equal_rewards_and_a_group_of_one_give_exactly_zero():
    assert opo(of(0.1, 0.1, 0.1, 5), integers(0, 0, 0, 1), of(3, 7, 11, 2)).tolist() == [0.0] * 4


def test_two_trajectories_of_unequal_length():
    # (1·2 + 3·0) / 4 = ½
    assert opo(of(2, 0), integers(0, 0), of(1, 3)).tolist() == near(1.5, -0.5)
