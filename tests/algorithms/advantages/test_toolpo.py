"""ToolPO: the reward of correct calls applies to the tokens of calls."""

import pytest

from support.batches import integers, of
from whetstone.algorithms.advantages import group_relative, toolpo


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


def test_worked_numbers():
    owner, calls = integers(0, 0, 1, 1, 2, 2), of(0, 1, 0, 1, 0, 1)
    advantages = toolpo(of(1, 0, 1), of(2, 1, 1.5), integers(0, 0, 0), owner, calls)
    assert advantages.tolist() == near(0.333333, 0.833333, -0.666667, -1.166667, 0.333333, 0.333333)


def test_without_call_tokens_advantages_equal_the_mean_baseline():
    owner = integers(0, 1, 2)
    advantages = toolpo(of(1, 0, 1), of(2, 1, 1.5), integers(0, 0, 0), owner, of(0, 0, 0))
    assert advantages.tolist() == near(*group_relative(of(1, 0, 1), integers(0, 0, 0), scale=False).tolist())
