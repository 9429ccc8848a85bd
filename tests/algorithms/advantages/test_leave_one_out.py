"""The mean of the others is the baseline."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests_batches import of, whole
from whetstone.algorithms.advantages import group_relative, leave_one_out


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


NUMBERS = st.lists(st.floats(-3, 3), min_size=2, max_size=8)


def test_worked_numbers():
    # 1 − (0 + 0.5 + 0)/3
    assert leave_one_out(of(1, 0, 0.5, 0), whole(0, 0, 0, 0)).tolist() == near(0.833333, -0.5, 0.166667, -0.5)


def test_a_group_of_one_has_no_others():
    assert leave_one_out(of(2), whole(0)).tolist() == [0.0]


@given(NUMBERS)
def test_it_is_dr_grpo_times_g_over_g_minus_1_and_sums_to_zero(rewards):
    rewards, n = of(*rewards), len(rewards)
    found = leave_one_out(rewards, whole(*[0] * n))
    assert found.tolist() == pytest.approx(
        (n / (n - 1) * group_relative(rewards, whole(*[0] * n), scale=False)).tolist(), abs=1e-9
    )
    assert found.sum().item() == pytest.approx(0, abs=1e-9)
