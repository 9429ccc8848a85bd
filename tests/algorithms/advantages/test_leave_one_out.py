"""RLOO: the mean of the other trajectories is the baseline."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.batches import integers, of
from whetstone.algorithms.advantages import group_relative, leave_one_out


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


NUMBERS = st.lists(st.floats(-3, 3), min_size=2, max_size=8)


def test_worked_numbers():
    # 1 − (0 + 0.5 + 0)/3
    assert leave_one_out(of(1, 0, 0.5, 0), integers(0, 0, 0, 0)).tolist() == near(0.833333, -0.5, 0.166667, -0.5)


def test_group_of_one_gives_zero():
    assert leave_one_out(of(2), integers(0)).tolist() == [0.0]


@given(NUMBERS)
def test_advantages_are_dr_grpo_times_g_over_g_minus_1_and_sum_to_zero(rewards):
    rewards, n = of(*rewards), len(rewards)
    advantages = leave_one_out(rewards, integers(*[0] * n))
    assert advantages.tolist() == pytest.approx(
        (n / (n - 1) * group_relative(rewards, integers(*[0] * n), scale=False)).tolist(), abs=1e-9
    )
    assert advantages.sum().item() == pytest.approx(0, abs=1e-9)
