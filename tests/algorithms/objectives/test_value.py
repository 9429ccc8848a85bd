"""Critic losses: half the squared error, and 0 for values without a target."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from whetstone.algorithms import clipped_value, squared_value, success_value
from whetstone.algorithms.objectives import value_slope


def test_worked_numbers():
    values = torch.tensor([0.5, 2.0, -1.0], requires_grad=True)
    result = squared_value(values, torch.tensor([1.0, 2.0, 1.0]))
    assert result.loss.tolist() == pytest.approx([0.125, 0.0, 2.0])
    assert result.metrics["value/loss"].tolist() == pytest.approx([0.5, 0.0, 2.0])
    result.loss.sum().backward()
    assert values.grad.tolist() == pytest.approx([-0.5, 0.0, -2.0])


def test_value_without_a_target_has_no_loss_and_no_gradient():
    values = torch.tensor([0.5, 7.0], requires_grad=True)
    result = squared_value(values, torch.tensor([1.0, math.nan]))
    assert result.loss[1].item() == 0.0
    result.loss.sum().backward()
    assert values.grad[1].item() == 0.0


@pytest.mark.parametrize(
    ("value", "target", "loss", "slope"), [(0.9, 1.0, 0.045, 0.0), (0.6, 1.0, 0.08, -0.4), (0.9, 0.6, 0.045, 0.3)]
)
def test_clipped_value_loss_limits_the_change(value, target, loss, slope):
    now = torch.tensor([value], dtype=torch.float64, requires_grad=True)
    result = clipped_value(now, torch.tensor([0.5]).double(), torch.tensor([target]).double())
    result.loss.sum().backward()
    assert (result.loss.item(), now.grad.item()) == (pytest.approx(loss), pytest.approx(slope, abs=1e-6))


def test_losses_of_twin_critics_are_summed():
    # ArCHer: Q .5 .4 to .73 .82, V .3 .6 to .55 .45: squared errors .0529 .1764 .0625 .0225
    values = torch.tensor([[0.5, 0.4, 0.3, 0.6]], dtype=torch.float64, requires_grad=True)
    result = squared_value(values, torch.tensor([[0.73, 0.82, 0.55, 0.45]]).double())
    assert 2 * result.loss.item() == pytest.approx(0.3143)
    assert result.loss.shape == (1,)


def test_success_value_is_a_cross_entropy():
    p = torch.tensor([0.5, 0.9, 0.3], dtype=torch.float64, requires_grad=True)
    result = success_value(p, torch.tensor([1.0, 0.0, math.nan]).double())
    result.loss.sum().backward()
    assert result.loss.tolist() == pytest.approx([0.693147, 2.302585, 0], abs=1e-6)
    assert p.grad.tolist() == pytest.approx([-2, 10, 0])
    sure = success_value(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]))
    assert sure.loss.isfinite().all()


NUMBERS = st.sampled_from([-1.3, -0.25, 0.0, 0.1, 0.45, 0.9, 2.0])
STEPS = st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS | st.just(math.nan)), min_size=1, max_size=6)
"""(value, old value, target) per step."""
OFF_THE_EDGES = 0.000137


def naive_squared(value, old, target):
    return 0.5 * (value - target) ** 2, value - target


def naive_clipped(value, old, target, clip):
    clipped = min(max(value, old - clip), old + clip)
    if (clipped - target) ** 2 > (value - target) ** 2:
        return 0.5 * (clipped - target) ** 2, value - target if clipped == value else 0.0
    return 0.5 * (value - target) ** 2, value - target


def looped(steps, loss_of):
    """Compute losses, slopes and errors; 0, 0 and NaN for steps without a target."""
    rows = [
        (0.0, 0.0, math.nan)
        if math.isnan(target)
        else (*loss_of(value + OFF_THE_EDGES, old, target), abs(value + OFF_THE_EDGES - target))
        for value, old, target in steps
    ]
    return [list(column) for column in zip(*rows, strict=True)]


@given(steps=STEPS, clip=st.sampled_from([0.05, 0.2, 1.0]))
def test_losses_gradients_and_errors_of_critics_equal_loops_over_floats(steps, clip):
    for name, loss_of in (("squared", naive_squared), ("clipped", partial(naive_clipped, clip=clip))):
        values, old, targets = (torch.tensor(column, dtype=torch.float64) for column in zip(*steps, strict=True))
        values = (values + OFF_THE_EDGES).requires_grad_()
        for column in (old, targets):
            column.requires_grad_()
        critic_loss = (
            squared_value(values, targets) if name == "squared" else clipped_value(values, old, targets, clip=clip)
        )
        critic_loss.loss.sum().backward()
        result = [critic_loss.loss.tolist(), values.grad.tolist(), critic_loss.metrics["value/loss"].tolist()]
        for actual, expected in zip(result, looped(steps, loss_of), strict=True):
            assert actual == pytest.approx(expected, abs=1e-12, nan_ok=True)
        assert old.grad is targets.grad is None
        assert not critic_loss.metrics["value/loss"].requires_grad


def test_success_value_reports_its_error():
    p = torch.tensor([0.75, 0.25, 0.5], dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([0.0, 1.0, math.nan], dtype=torch.float64, requires_grad=True)
    result = success_value(p, targets)
    assert result.metrics["value/loss"].tolist() == pytest.approx([0.75, 0.75, math.nan], nan_ok=True)
    assert not result.metrics["value/loss"].requires_grad
    result.loss.sum().backward()
    assert targets.grad is None


def test_success_value_accepts_fractional_targets():
    # −¼ log ½ − ¾ log ½
    result = success_value(torch.tensor([0.5]).double(), torch.tensor([0.25]).double())
    assert result.loss.item() == pytest.approx(math.log(2))
    # −¼ log ¼ − ¾ log ¾
    result = success_value(torch.tensor([0.25]).double(), torch.tensor([0.25]).double())
    assert result.loss.item() == pytest.approx(0.562335, abs=1e-6)


def test_errors_of_heads_are_means_over_heads_with_a_target():
    values = torch.tensor([[0.5, 2.0], [1.0, 1.0]], dtype=torch.float64)
    targets = torch.tensor([[1.0, math.nan], [0.0, 4.0]], dtype=torch.float64)
    result = squared_value(values, targets)
    assert result.loss.tolist() == [0.125, 0.5 + 4.5]
    assert result.metrics["value/loss"].tolist() == [0.5, 2.0]


def test_value_slope_has_the_given_derivatives():
    values = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    slopes = torch.tensor([[0.5, -1.0], [0.0, 2.0]])
    result = value_slope(values, slopes)
    assert result.loss.tolist() == [-1.5, 8.0]  # 0.5 - 2; 0 + 8
    result.loss.sum().backward()
    assert torch.equal(values.grad, slopes)
