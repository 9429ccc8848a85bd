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


@given(st.floats(0.05, 1.27), st.sampled_from([1.0, -1.0, 0.3]))
def test_below_the_upper_bound_it_is_ppo(ratio, advantage):
    mine, theirs = (of_ratios(f, [ratio], [advantage], clip_high=0.28) for f in (entropy_balanced, clipped))
    assert mine[:2] == (pytest.approx(theirs[0]), pytest.approx(theirs[1]))
