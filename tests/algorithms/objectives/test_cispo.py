"""CISPO: bounded weights, and a gradient for every token."""

import pytest

from support.batches import of, of_ratios
from whetstone.algorithms import clipped
from whetstone.algorithms.objectives import cispo


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


BOTH = {"min_ratio": 0.8, "max_ratio": 1.28}


def test_worked_numbers():
    values, gradients, _ = of_ratios(cispo, [1.5, 0.5, 5], [1, -1, -1], old=0.15, **BOTH)
    assert values == near(1.909318, -2.072214, -0.368233)
    assert gradients == near(-1.28, 0.8, 1.28)
    values, gradients, _ = of_ratios(cispo, [1.5, 0.5], [1, -1], old=0.15, max_ratio=1.28)
    assert values == near(1.909318, -1.295134)
    assert gradients == near(-1.28, 0.5)
    values, _, _ = of_ratios(cispo, [1.5, 0.5], [1, -1], old=0.3, **BOTH)
    assert values == near(1.022090, -1.517696)


def test_gradient_within_the_bounds_is_that_of_ppo():
    ratios, advantages = [0.9, 1.1, 1.19], [1, -1, 1]
    assert of_ratios(cispo, ratios, advantages)[1] == near(*of_ratios(clipped, ratios, advantages)[1])


def test_without_bounds_it_is_importance_weighted_reinforce():
    assert of_ratios(cispo, [7.0], [1], max_ratio=1e9)[1] == near(-7.0)


def test_reversed_bounds_are_refused():
    with pytest.raises(ValueError, match="min_ratio"):
        of_ratios(cispo, [1], [1], min_ratio=2, max_ratio=1)


def test_columns_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="columns must have the same shape"):
        cispo(of(1), of(1), of(1, 2))
