"""A smooth gate."""

import pytest
import torch

from tests_batches import of
from whetstone.algorithms.objectives import sapo


def said(function, ratios, advantages, *, old=1.0, **options):
    """(values, gradients) of tokens with these ratios to the old policy."""
    learner = (of(*ratios) * old).log().requires_grad_()
    found = function(learner, torch.full_like(learner, old).log().detach(), of(*advantages), **options)
    found.loss.sum().backward()
    return found.loss.tolist(), learner.grad.tolist(), found.metrics


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


def test_worked_numbers():
    values, gradients, _ = said(sapo, [1, 1.5, 1.5], [1, 1, -1])
    assert values == near(-2, -2.489837, 2.393585)
    assert gradients == near(-1, -1.410022, 1.401210)


def test_its_slope_at_one_is_that_of_ppo():
    assert said(sapo, [1, 1], [0.7, -0.3], temperature=3.0, negative_temperature=5.0)[1] == near(-0.7, 0.3)
