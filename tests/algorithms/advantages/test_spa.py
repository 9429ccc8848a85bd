"""Attributed rewards, and what the attribution learns."""

import pytest

from tests_batches import of, whole
from whetstone.algorithms.advantages import spa


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


C, G, OWNER = of(0.1, 0.3, 0.6), of(1, 0, 1), whole(0, 0, 0)


def said(**options):
    nothing = of(0, 0, 0)
    return spa(of(0.8), C, G, nothing, of(0), OWNER, discount=1.0, trace=1.0, whiten=False, **options)


def test_worked_numbers():
    # rewards .6 .3 1.1, summed to the end
    assert said(residual="none").advantages.tolist() == near(2.0, 1.4, 1.1)
    # (1.0 − 0.8)² = 0.04: each target lies 0.2 below what was said
    assert (said().targets["contributions"] - C).tolist() == near(-0.2, -0.2, -0.2)


def test_what_is_missing_goes_to_the_last_turn():
    found = said(residual="last", grounding_weight=0.0).advantages
    assert found.tolist() == near(0.8, 0.7, 0.4)


def test_half_the_squared_distance_to_the_target_has_the_gradient_of_the_sum():
    c = C.clone().requires_grad_()
    (0.5 * (c.sum() - 0.8) ** 2).backward()
    assert (C - said().targets["contributions"]).tolist() == near(*c.grad.tolist())


def test_the_critic_learns_what_its_turns_came_to():
    # rewards .6 .3 1.1 less .5 of each step's value, and the value again
    values = of(0.5, 0.25, 0.125)
    found = spa(of(0.8), C, G, values, of(0), OWNER, residual="none", discount=1.0, trace=1.0, whiten=False)
    assert found.advantages.tolist() == near(1.5, 1.15, 0.975)
    assert found.targets["values"].tolist() == near(2.0, 1.4, 1.1)
