"""KL-Cov: tokens of highest covariance receive a KL penalty."""

import pytest
import torch

from support.batches import of
from whetstone.algorithms.advantage_transforms import clip_cov
from whetstone.algorithms.objectives import kl_cov


def test_worked_numbers():
    now = of(-0.1, -3, -0.3, -3).requires_grad_()
    rank = of(0, 1.0, 0.75, 0.5)
    result = kl_cov(now, (now - 0.05).detach(), of(1, 1, -1, -1), rank)
    result.loss.mean().backward()
    assert result.loss.mean().item() == pytest.approx(0.0125, abs=1e-5)
    assert now.grad.tolist() == pytest.approx([-0.012818, -0.262818, 0.262818, 0.262818], abs=1e-5)


@pytest.mark.parametrize(
    ("count", "fraction", "num_penalized"), [(10, 0.25, 2), (10, 0.2, 2), (10, 0.05, 1), (7, 0.5, 3), (3, 1, 3)]
)
def test_fraction_of_the_batch_is_rounded_down_to_at_least_one_token(count, fraction, num_penalized):
    rank = torch.arange(1, count + 1).double() / count
    rank[0] = 0.0
    zero = torch.zeros(count, dtype=torch.float64)
    result = kl_cov(zero, zero, zero + 1, rank, fraction=fraction).metrics["policy/covariance_fraction"]
    assert result.tolist() == [1.0] * num_penalized + [0.0] * (count - num_penalized)
    # the column's covariances: credit and log-prob rise together, so they fall to both sides of the middle
    credit = torch.tensor([float(3 ** (count - k)) for k in range(count)], dtype=torch.float64)
    silenced = clip_cov(credit, credit, torch.arange(count).double(), fraction=fraction, low=-1e30, high=1e30)
    assert int((silenced == 0).sum()) == num_penalized


def test_penalty_has_no_gradient_at_the_first_update():
    now = of(-0.1).requires_grad_()
    kl_cov(now, now.detach(), of(1), of(0)).loss.sum().backward()
    assert now.grad.tolist() == [-1]
