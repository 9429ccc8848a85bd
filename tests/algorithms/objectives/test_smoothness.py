"""What is said of a state, and of one a little beside it."""

import pytest
import torch

from tests_batches import of
from whetstone.algorithms.objectives import consistency


def test_consistency_by_hand_with_gradient_through_both():
    now, beside = of(0.5, -1).requires_grad_(), of(0.2, -1).requires_grad_()
    found = consistency(now, beside)
    assert found.loss.tolist() == pytest.approx([0.045, 0])
    found.loss.sum().backward()
    assert now.grad.tolist() == pytest.approx([0.3, 0])
    assert beside.grad.tolist() == pytest.approx([-0.3, 0])


def test_heads_are_summed():
    assert consistency(torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 0.0]])).loss.tolist() == [2.5]
