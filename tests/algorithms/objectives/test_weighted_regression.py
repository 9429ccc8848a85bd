"""Advantage-weighted regression and regression to advantages."""

import pytest

from support.batches import integers, of
from whetstone.algorithms.advantages import digirl
from whetstone.algorithms.objectives import advantage_regression, advantage_weighted, policy_gradient


def test_weights_increase_with_the_advantage_up_to_a_cap():
    now = of(-1, -1, -1, -1).requires_grad_()
    result = advantage_weighted(now, of(-1, 0, 1, 3))
    result.loss.sum().backward()
    assert result.loss.tolist() == pytest.approx([0.367879, 1, 2.718282, 20], abs=1e-5)
    assert now.grad.tolist() == pytest.approx([-0.367879, -1, -2.718282, -20], abs=1e-5)
    assert advantage_weighted(of(-1), of(1e9)).loss.item() == 20
    with pytest.raises(ValueError, match="temperature"):
        advantage_weighted(of(-1), of(1), temperature=0)


def test_advantage_filtered_turns_have_advantage_one():
    credit = digirl(of(0, 0), of(0.5, 0.6), of(0), of(0.5, 0.6), of(0), integers(0, 0)).advantages
    assert credit.tolist() == [1, 0]  # .6 − .5 − .05; 0 − .6 − .05
    result = policy_gradient(of(-2, -1), credit).loss
    assert result.mean().item() == 1.0


def loss_and_gradient(**options):
    """Return loss and gradient of five tokens with log-prob sums −8, −10 under the reference, and advantage 1."""
    now, reference = of(*[-1.6] * 5).requires_grad_(), of(*[-2.0] * 5)
    loss = advantage_regression(
        now, reference, of(*[1.0] * 5), integers(*[0] * 5), integers(*[0] * 5), **options
    ).loss.mean()
    loss.backward()
    return loss.item(), now.grad.tolist()


def test_worked_numbers():
    # mean log-ratio .4; .4 − 1
    assert loss_and_gradient() == (pytest.approx(0.18), pytest.approx([-0.12] * 5))
    assert loss_and_gradient(form="squared") == (pytest.approx(0.36), pytest.approx([-0.24] * 5))


def test_squared_form_reverses_the_gradient_beyond_its_target():
    now = of(1.5).requires_grad_()
    advantage_regression(now, of(0), of(1), integers(0), integers(0), form="squared").loss.sum().backward()
    assert now.grad.item() == pytest.approx(1.0)


def test_negative_advantages_are_dropped_or_kept():
    columns = of(0), of(-1), integers(0), integers(0)
    for negatives, expected in (("drop", 0.0), ("keep", 2.0)):
        now = of(0).requires_grad_()
        advantage_regression(now, *columns, form="squared", negatives=negatives).loss.sum().backward()
        assert now.grad.item() == expected
