"""The critic's loss is half its squared error, and nothing where nothing was foretold."""

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
    found = squared_value(values, torch.tensor([1.0, 2.0, 1.0]))
    assert found.loss.tolist() == pytest.approx([0.125, 0.0, 2.0])
    assert found.metrics["value/loss"].tolist() == pytest.approx([0.5, 0.0, 2.0])
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


NUMBERS = st.sampled_from([-1.3, -0.25, 0.0, 0.1, 0.45, 0.9, 2.0])
STEPS = st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS | st.just(math.nan)), min_size=1, max_size=6)
"""(value, old value, target) of each."""
OFF_THE_EDGES = 0.000137


def naive_squared(value, old, target):
    return 0.5 * (value - target) ** 2, value - target


def naive_clipped(value, old, target, clip):
    held = min(max(value, old - clip), old + clip)
    if (held - target) ** 2 > (value - target) ** 2:
        return 0.5 * (held - target) ** 2, value - target if held == value else 0.0
    return 0.5 * (value - target) ** 2, value - target


def looped(steps, loss_of):
    """Losses, slopes and errors; 0, 0 and NaN where nothing is foretold."""
    found = [
        (0.0, 0.0, math.nan)
        if math.isnan(target)
        else (*loss_of(value + OFF_THE_EDGES, old, target), abs(value + OFF_THE_EDGES - target))
        for value, old, target in steps
    ]
    return [list(column) for column in zip(*found, strict=True)]


@given(steps=STEPS, clip=st.sampled_from([0.05, 0.2, 1.0]))
def test_a_critics_losses_slopes_and_errors_are_those_of_loops_over_floats(steps, clip):
    for name, loss_of in (("squared", naive_squared), ("clipped", partial(naive_clipped, clip=clip))):
        values, old, targets = (torch.tensor(column, dtype=torch.float64) for column in zip(*steps, strict=True))
        values = (values + OFF_THE_EDGES).requires_grad_()
        for column in (old, targets):
            column.requires_grad_()
        found = squared_value(values, targets) if name == "squared" else clipped_value(values, old, targets, clip=clip)
        found.loss.sum().backward()
        result = [found.loss.tolist(), values.grad.tolist(), found.metrics["value/loss"].tolist()]
        for actual, expected in zip(result, looped(steps, loss_of), strict=True):
            assert actual == pytest.approx(expected, abs=1e-12, nan_ok=True)
        assert old.grad is targets.grad is None
        assert not found.metrics["value/loss"].requires_grad


def test_a_probability_says_how_far_it_was_from_what_came_about():
    p = torch.tensor([0.75, 0.25, 0.5], dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([0.0, 1.0, math.nan], dtype=torch.float64, requires_grad=True)
    found = success_value(p, targets)
    assert found.metrics["value/loss"].tolist() == pytest.approx([0.75, 0.75, math.nan], nan_ok=True)
    assert not found.metrics["value/loss"].requires_grad
    found.loss.sum().backward()
    assert targets.grad is None


def test_a_probability_may_be_asked_for_something_between():
    # −¼ log ½ − ¾ log ½
    found = success_value(torch.tensor([0.5]).double(), torch.tensor([0.25]).double())
    assert found.loss.item() == pytest.approx(math.log(2))
    # −¼ log ¼ − ¾ log ¾
    found = success_value(torch.tensor([0.25]).double(), torch.tensor([0.25]).double())
    assert found.loss.item() == pytest.approx(0.562335, abs=1e-6)


def test_errors_of_heads_are_a_mean_over_those_that_foretell_something():
    values = torch.tensor([[0.5, 2.0], [1.0, 1.0]], dtype=torch.float64)
    targets = torch.tensor([[1.0, math.nan], [0.0, 4.0]], dtype=torch.float64)
    found = squared_value(values, targets)
    assert found.loss.tolist() == [0.125, 0.5 + 4.5]
    assert found.metrics["value/loss"].tolist() == [0.5, 2.0]


def test_value_slope_has_the_given_derivatives():
    values = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    slopes = torch.tensor([[0.5, -1.0], [0.0, 2.0]])
    result = value_slope(values, slopes)
    assert result.loss.tolist() == [-1.5, 8.0]  # 0.5 - 2; 0 + 8
    result.loss.sum().backward()
    assert torch.equal(values.grad, slopes)
