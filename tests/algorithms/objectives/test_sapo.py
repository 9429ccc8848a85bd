"""SAPO: a smooth gate instead of clipping."""

import pytest

from support.batches import of_ratios
from whetstone.algorithms.objectives import sapo


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


def test_worked_numbers():
    values, gradients, _ = of_ratios(sapo, [1, 1.5, 1.5], [1, 1, -1])
    assert values == near(-2, -2.489837, 2.393585)
    assert gradients == near(-1, -1.410022, 1.401210)


def test_gradient_at_ratio_one_is_that_of_ppo():
    assert of_ratios(sapo, [1, 1], [0.7, -0.3], temperature=3.0, negative_temperature=5.0)[1] == near(-0.7, 0.3)
