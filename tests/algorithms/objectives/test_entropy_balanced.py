"""The upper bound keeps its gradient."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests_batches import of_ratios
from whetstone.algorithms import clipped
from whetstone.algorithms.objectives import entropy_balanced


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


def test_worked_numbers():
    values, gradients, metrics = of_ratios(entropy_balanced, [1.5, 4, 1.1, 0.5, 0.5, 1.5], [1, 1, 1, 1, -1, -1])
    assert values == near(-1.28, -1.28, -1.1, -0.5, 0.8, 1.5)
    assert gradients == near(-1.28, -1.28, -1.1, -0.5, 0, 1.5)
    assert metrics["policy/balanced_fraction"].tolist() == [1, 1, 0, 0, 0, 0]


def test_a_bad_token_far_away_is_pushed_down_by_three_times_its_advantage_at_most():
    values, gradients, metrics = of_ratios(entropy_balanced, [5.0, 2.9, 5.0, 5.0], [-1, -1, -0.5, 1])
    assert values == near(3, 2.9, 1.5, -1.28)
    assert gradients == near(0, 2.9, 0, -1.28)
    assert metrics["policy/dual_clip_fraction"].tolist() == [1, 0, 1, 0]
    values, gradients, _ = of_ratios(entropy_balanced, [5.0], [-1], dual_clip=None)
    assert (values, gradients) == (near(5), near(5))
    with pytest.raises(ValueError, match="dual_clip is above"):
        of_ratios(entropy_balanced, [1.0], [1], dual_clip=1.28)


@given(st.floats(0.05, 1.27), st.sampled_from([1.0, -1.0, 0.3]))
def test_below_the_upper_bound_it_is_ppo(ratio, advantage):
    mine, theirs = (of_ratios(f, [ratio], [advantage], clip_high=0.28) for f in (entropy_balanced, clipped))
    assert mine[:2] == (pytest.approx(theirs[0]), pytest.approx(theirs[1]))
