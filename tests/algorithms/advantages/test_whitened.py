"""Whitening: worked numbers, and inputs without variance."""

import pytest
import torch

from whetstone.algorithms import whitened


def test_worked_numbers_of_four_tokens():
    result = whitened(torch.tensor([0.407744, 0.4552, 0.41, 0.5], dtype=torch.float64))
    assert result.tolist() == pytest.approx([-0.812134, 0.273762, -0.760512, 1.298884], abs=1e-5)


@pytest.mark.parametrize("numbers", [[], [3.0], [0.1] * 7])
def test_equal_numbers_give_exactly_zero(numbers):
    assert whitened(torch.tensor(numbers)).tolist() == [0.0] * len(numbers)


def test_two_numbers_have_fixed_advantages():
    assert whitened(torch.tensor([3.0, 1.0])).tolist() == pytest.approx([0.5**0.5, -(0.5**0.5)])


def test_spread_of_rounding_size_is_not_amplified():
    # ±1e-4: a variance of 2e-8, and 1e-8 more; 1/√3
    result = whitened(torch.tensor([1e-4, -1e-4], dtype=torch.float64))
    assert result.tolist() == pytest.approx([3**-0.5, -(3**-0.5)])
