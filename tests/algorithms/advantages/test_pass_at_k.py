"""Pass@k: only the best trajectory of a group has an advantage."""

import pytest

from support.batches import integers, of
from whetstone.algorithms.advantages import pass_at_k


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


def test_worked_numbers():
    rewards, group = of(1, 0, 0.5, 0), integers(0, 0, 0, 0)
    assert pass_at_k(rewards, group).tolist() == [0.5, 0, 0, 0]
    assert pass_at_k(rewards, group, scale=True).tolist() == near(1.044464, 0, 0, 0)
    assert pass_at_k(rewards, group, scale=True, epsilon=1.0).tolist() == near(0.5 / 1.478714, 0, 0, 0)


def test_ties_and_a_group_of_one_give_zero():
    assert pass_at_k(of(1, 1, 0, 9), integers(0, 0, 0, 1)).tolist() == [0.0] * 4
