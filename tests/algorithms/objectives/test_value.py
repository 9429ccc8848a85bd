"""The critic's loss is half its squared error, and nothing where nothing was foretold."""

import math

import pytest
import torch

from whetstone.algorithms import squared_value


def test_worked_numbers():
    values = torch.tensor([0.5, 2.0, -1.0], requires_grad=True)
    found = squared_value(values, torch.tensor([1.0, 2.0, 1.0]))
    assert found.loss.tolist() == pytest.approx([0.125, 0.0, 2.0])
    assert found.metrics["value/error"].tolist() == pytest.approx([0.5, 0.0, 2.0])
    found.loss.sum().backward()
    assert values.grad.tolist() == pytest.approx([-0.5, 0.0, -2.0])


def test_where_nothing_is_foretold_there_is_no_loss_and_no_gradient():
    values = torch.tensor([0.5, 7.0], requires_grad=True)
    found = squared_value(values, torch.tensor([1.0, math.nan]))
    assert found.loss[1].item() == 0.0
    found.loss.sum().backward()
    assert values.grad[1].item() == 0.0
