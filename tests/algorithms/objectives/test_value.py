"""The critic's loss is half its squared error, and nothing where nothing was foretold."""

import math

import pytest
import torch

from whetstone.algorithms import clipped_value, squared_value, success_value


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


@pytest.mark.parametrize(
    ("value", "target", "loss", "slope"), [(0.9, 1.0, 0.045, 0.0), (0.6, 1.0, 0.08, -0.4), (0.9, 0.6, 0.045, 0.3)]
)
def test_a_value_kept_near_the_old_one(value, target, loss, slope):
    now = torch.tensor([value], dtype=torch.float64, requires_grad=True)
    found = clipped_value(now, torch.tensor([0.5]).double(), torch.tensor([target]).double())
    found.loss.sum().backward()
    assert (found.loss.item(), now.grad.item()) == (pytest.approx(loss), pytest.approx(slope, abs=1e-6))


def test_twin_critics_sum_their_errors():
    # ArCHer's: Q .5 .4 to .73 .82, V .3 .6 to .55 .45: squared errors .0529 .1764 .0625 .0225
    values = torch.tensor([[0.5, 0.4, 0.3, 0.6]], dtype=torch.float64, requires_grad=True)
    found = squared_value(values, torch.tensor([[0.73, 0.82, 0.55, 0.45]]).double())
    assert 2 * found.loss.item() == pytest.approx(0.3143)
    assert found.loss.shape == (1,)


def test_a_probability_of_success():
    p = torch.tensor([0.5, 0.9, 0.3], dtype=torch.float64, requires_grad=True)
    found = success_value(p, torch.tensor([1.0, 0.0, math.nan]).double())
    found.loss.sum().backward()
    assert found.loss.tolist() == pytest.approx([0.693147, 2.302585, 0], abs=1e-6)
    assert p.grad.tolist() == pytest.approx([-2, 10, 0])
    sure = success_value(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]))
    assert sure.loss.isfinite().all()
