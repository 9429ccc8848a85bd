"""`famo2o` balances imitation and improvement per turn."""

import math

import pytest

from support.batches import of
from whetstone.algorithms.advantage_transforms import balance_coefficient, famo2o


def test_agreeing_critics_give_improvement_and_disagreeing_critics_imitation():
    # at a deviation of one scale e times closer to the minimum
    result = balance_coefficient(of(0, 0.1, 1e9), min_coef=0.5, max_coef=3, scale=0.1)
    assert result.tolist() == pytest.approx([3, 0.5 + 2.5 / math.e, 0.5])


def test_balanced_by_hand():
    # exp(.5 · .5), exp(1 · .5), exp(3 · .5)
    for b, weight in ((0.5, 1.284025), (1, 1.648721), (3, 4.481689)):
        assert famo2o(of(0.5), of(0.7), min_coef=b, max_coef=b).item() == pytest.approx(weight, abs=1e-6)
    assert famo2o(of(100), of(0)).item() == 20
    assert famo2o(of(-2, 2), of(0, 0), min_coef=0, max_coef=0).tolist() == [1, 1]


def test_reversed_range_is_refused():
    with pytest.raises(ValueError, match="at least min_coef"):
        famo2o(of(1), of(0), min_coef=2, max_coef=1)
