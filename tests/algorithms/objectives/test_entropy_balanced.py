"""Entropy-balanced objective: tokens above the upper bound keep a gradient."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.batches import of_ratios
from whetstone.algorithms import clipped
from whetstone.algorithms.objectives import entropy_balanced


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


def test_worked_numbers():
    values, gradients, metrics = of_ratios(entropy_balanced, [1.5, 4, 1.1, 0.5, 0.5, 1.5], [1, 1, 1, 1, -1, -1])
    assert values == near(-1.28, -1.28, -1.1, -0.5, 0.8, 1.5)
    assert gradients == near(-1.28, -1.28, -1.1, -0.5, 0, 1.5)
    assert metrics["policy/balanced_fraction"].tolist() == [1, 1, 0, 0, 0, 0]


def test_gradient_of_a_negative_advantage_is_at_most_three_times_the_advantage():
    values, gradients, metrics = of_ratios(entropy_balanced, [5.0, 2.9, 5.0, 5.0], [-1, -1, -0.5, 1])
    assert values == near(3, 2.9, 1.5, -1.28)
    assert gradients == near(0, 2.9, 0, -1.28)
    assert metrics["policy/dual_clip_fraction"].tolist() == [1, 0, 1, 0]
    values, gradients, _ = of_ratios(entropy_balanced, [5.0], [-1], dual_clip=None)
    assert (values, gradients) == (near(5), near(5))
    with pytest.raises(ValueError, match="dual_clip must be above"):
        of_ratios(entropy_balanced, [1.0], [1], dual_clip=1.28)


@given(st.floats(0.05, 1.27), st.sampled_from([1.0, -1.0, 0.3]))
def test_objective_below_the_upper_bound_is_ppo(ratio, advantage):
    balanced, ppo = (of_ratios(f, [ratio], [advantage], clip_high=0.28) for f in (entropy_balanced, clipped))
    assert balanced[:2] == (pytest.approx(ppo[0]), pytest.approx(ppo[1]))
