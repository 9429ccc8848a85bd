"""GMPO: the geometric mean of ratios, clipped in log space."""

import pytest
import torch

from support.batches import integers, of
from whetstone.algorithms.objectives import gmpo


def loss_and_gradient(gaps, advantage, **options):
    learner = of(*gaps).requires_grad_()
    count = len(gaps)
    result = gmpo(learner, torch.zeros_like(learner), of(*[advantage] * count), integers(*[0] * count), **options)
    result.loss.mean().backward()
    return result.loss.mean().item(), learner.grad.tolist()


def test_bound_is_in_log_space():
    value, gradient = loss_and_gradient([0.6, -0.1, 0.2], 1.0)
    assert value == pytest.approx(-1.181360, abs=1e-5)  # 0.6 counts as 0.4
    assert gradient == pytest.approx([0, -1.181360 / 3, -1.181360 / 3], abs=1e-5)
    assert loss_and_gradient([0.6, -0.1, 0.2], 1.0, clip=9.0)[0] == pytest.approx(-1.262803, abs=1e-5)


def test_sign_of_the_advantage_selects_the_side_of_the_clip():
    assert loss_and_gradient([0.6, -0.6], -1.0)[0] == pytest.approx(2.718281828**0.1, abs=1e-6)  # −0.6 counts as −0.4
