"""A geometric mean, held in log space."""

import pytest
import torch

from tests_batches import of, whole
from whetstone.algorithms.objectives import gmpo


def said(gaps, advantage, **options):
    learner = of(*gaps).requires_grad_()
    count = len(gaps)
    found = gmpo(learner, torch.zeros_like(learner), of(*[advantage] * count), whole(*[0] * count), **options)
    found.loss.mean().backward()
    return found.loss.mean().item(), learner.grad.tolist()


def test_the_bound_is_in_log_space():
    value, gradient = said([0.6, -0.1, 0.2], 1.0)
    assert value == pytest.approx(-1.181360, abs=1e-5)  # 0.6 counts as 0.4
    assert gradient == pytest.approx([0, -1.181360 / 3, -1.181360 / 3], abs=1e-5)
    assert said([0.6, -0.1, 0.2], 1.0, clip=9.0)[0] == pytest.approx(-1.262803, abs=1e-5)


def test_the_side_is_the_advantages():
    assert said([0.6, -0.6], -1.0)[0] == pytest.approx(2.718281828**0.1, abs=1e-6)  # −0.6 counts as −0.4
