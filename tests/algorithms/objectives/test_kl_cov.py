"""The tokens that eat the entropy are slowed."""

import pytest

from tests_batches import of
from whetstone.algorithms.objectives import kl_cov


def test_worked_numbers():
    now = of(-0.1, -3, -0.3, -3).requires_grad_()
    rank = of(0, 0.75, 0.5, 0.25)
    found = kl_cov(now, (now - 0.05).detach(), of(1, 1, -1, -1), rank)
    found.loss.mean().backward()
    assert found.loss.mean().item() == pytest.approx(0.0125, abs=1e-5)
    assert now.grad.tolist() == pytest.approx([-0.012818, -0.262818, 0.262818, 0.262818], abs=1e-5)


def test_at_the_first_update_the_penalty_has_no_gradient():
    now = of(-0.1).requires_grad_()
    kl_cov(now, now.detach(), of(1), of(0)).loss.sum().backward()
    assert now.grad.tolist() == [-1]
