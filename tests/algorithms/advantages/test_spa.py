"""SPA: attributed rewards and the targets of the attribution model."""

import pytest

from support.batches import integers, of
from whetstone.algorithms.advantages import spa


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


C, G, OWNER = of(0.1, 0.3, 0.6), of(1, 0, 1), integers(0, 0, 0)


def estimate(**options):
    nothing = of(0, 0, 0)
    return spa(of(0.8), C, G, nothing, of(0), OWNER, discount=1.0, trace=1.0, whiten=False, **options)


def test_worked_numbers():
    # rewards .6 .3 1.1, summed to the end
    assert estimate(residual="none").advantages.tolist() == near(2.0, 1.4, 1.1)
    # (1.0 − 0.8)² = 0.04: each target is 0.2 below the prediction
    assert (estimate().targets["contributions"] - C).tolist() == near(-0.2, -0.2, -0.2)


def test_residual_goes_to_the_last_turn():
    advantages = estimate(residual="last", grounding_weight=0.0).advantages
    assert advantages.tolist() == near(0.8, 0.7, 0.4)


def test_squared_error_to_the_targets_has_the_gradient_of_the_sum():
    c = C.clone().requires_grad_()
    (0.5 * (c.sum() - 0.8) ** 2).backward()
    assert (C - estimate().targets["contributions"]).tolist() == near(*c.grad.tolist())


def test_critic_is_trained_on_the_returns_of_turns():
    # rewards .6 .3 1.1 minus .5 times each step's value, plus the value
    values = of(0.5, 0.25, 0.125)
    result = spa(of(0.8), C, G, values, of(0), OWNER, residual="none", discount=1.0, trace=1.0, whiten=False)
    assert result.advantages.tolist() == near(1.5, 1.15, 0.975)
    assert result.targets["values"].tolist() == near(2.0, 1.4, 1.1)
