"""Consistency of outputs at a state and at a perturbed state."""

import pytest
import torch

from support.batches import of
from whetstone.algorithms.objectives import consistency, policy_consistency, value_consistency


def test_worked_numbers_with_gradient_through_both():
    now, perturbed = of(0.5, -1).requires_grad_(), of(0.2, -1).requires_grad_()
    result = consistency(now, perturbed)
    assert result.loss.tolist() == pytest.approx([0.045, 0])
    result.loss.sum().backward()
    assert now.grad.tolist() == pytest.approx([0.3, 0])
    assert perturbed.grad.tolist() == pytest.approx([-0.3, 0])


def test_heads_are_summed():
    assert consistency(torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 0.0]])).loss.tolist() == [2.5]


def test_policy_consistency_is_reported_under_its_own_name():
    result = policy_consistency(of(0.5, -1), of(0.2, -1))
    assert result.loss.tolist() == pytest.approx([0.045, 0])
    assert result.metrics["consistency/policy"].tolist() == pytest.approx([0.045, 0])


def test_value_consistency_excludes_values_without_a_target():
    values = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    perturbed, nan = torch.tensor([[0.0, 0.0], [0.0, 0.0]]), float("nan")
    result = value_consistency(values, perturbed, torch.tensor([[0.5, nan], [nan, nan]]))
    assert result.loss.tolist() == [0.5, 0.0]
    assert result.metrics["consistency/value"].isnan().tolist() == [False, True]
    result.loss.sum().backward()
    assert values.grad.tolist() == [[1.0, 0.0], [0.0, 0.0]]
