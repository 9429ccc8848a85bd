"""The worked numbers of whitening, and what cannot be whitened."""

import pytest
import torch

from whetstone.algorithms import whitened


def test_four_tokens():
    found = whitened(torch.tensor([0.407744, 0.4552, 0.41, 0.5], dtype=torch.float64))
    assert found.tolist() == pytest.approx([-0.812134, 0.273762, -0.760512, 1.298884], abs=1e-5)


@pytest.mark.parametrize("numbers", [[], [3.0], [0.1] * 7])
def test_what_does_not_differ_comes_to_exactly_zero(numbers):
    assert whitened(torch.tensor(numbers)).tolist() == [0.0] * len(numbers)


def test_two_numbers_are_brought_to_one_size():
    assert whitened(torch.tensor([3.0, 1.0])).tolist() == pytest.approx([0.5**0.5, -(0.5**0.5)])


def test_a_spread_as_small_as_the_arithmetics_noise_is_not_blown_up():
    # ±1e-4: a variance of 2e-8, and 1e-8 more; 1/√3
    found = whitened(torch.tensor([1e-4, -1e-4], dtype=torch.float64))
    assert found.tolist() == pytest.approx([3**-0.5, -(3**-0.5)])
