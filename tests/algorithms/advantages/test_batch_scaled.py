"""`batch_scaled` divides by the standard deviation of the raw rewards of the whole batch."""

import pytest

from support.batches import integers, of
from whetstone.algorithms.advantages import batch_scaled, group_relative


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


def test_three_groups_share_one_deviation():
    rewards = of(1, 0, 0.5, 0, 1, 1, 1, 1, 0, 0, 0, 1)
    group = integers(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2)
    # std of all twelve 0.498102
    advantages = batch_scaled(rewards, group)
    assert advantages[:4].tolist() == near(1.254759, -0.752856, 0.250952, -0.752856)
    assert advantages[4:8].tolist() == [0.0] * 4
    assert advantages[8:].tolist() == near(-0.501904, -0.501904, -0.501904, 1.505711)
    assert (batch_scaled(rewards, group, ddof=0) / advantages)[0].item() == pytest.approx(0.498102 / 0.476897, abs=1e-5)


def test_identical_rewards_give_exactly_zero():
    assert batch_scaled(of(0.1, 0.1, 0.1), integers(0, 0, 1)).tolist() == [0.0] * 3


def test_single_group_equals_grpo():
    rewards, group = of(1, 0, 0.5, 0), integers(0, 0, 0, 0)
    assert batch_scaled(rewards, group).tolist() == pytest.approx(group_relative(rewards, group).tolist())
