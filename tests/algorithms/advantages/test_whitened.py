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
