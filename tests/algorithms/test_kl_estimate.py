"""Estimators of the KL divergence from one sample."""

import pytest
import torch

from whetstone.algorithms import reference_kl
from whetstone.algorithms.kl_estimate import kl_estimate


@pytest.mark.parametrize(
    ("reference", "values", "slopes"),
    [
        (0.25, [0.693147, 0.240227, 0.193147], [1, 0.693147, 0.5]),
        (0.75, [-0.405465, 0.082201, 0.094535], [1, -0.405465, -0.5]),
    ],
)
def test_values_and_gradients_of_three_estimators(reference, values, slopes):
    for estimator, value, slope in zip(("k1", "k2", "k3"), values, slopes, strict=True):
        now = torch.tensor([0.5], dtype=torch.float64).log().requires_grad_()
        estimate = kl_estimate(now - torch.tensor([reference]).double().log(), estimator)
        estimate.sum().backward()
        assert (estimate.item(), now.grad.item()) == (pytest.approx(value, abs=1e-6), pytest.approx(slope, abs=1e-6))


def test_value_and_gradient_can_come_from_different_estimators():
    now = torch.tensor([0.5], dtype=torch.float64).log().requires_grad_()
    estimate = kl_estimate(now - torch.tensor([0.25]).double().log(), "k3_as_k2")
    estimate.sum().backward()
    assert (estimate.item(), now.grad.item()) == (pytest.approx(0.193147, abs=1e-6), pytest.approx(0.693147, abs=1e-6))


@pytest.mark.parametrize("distance", [-1e4, -25.0, -15.0, 15.0, 1e4])
def test_estimate_of_a_distant_token_is_at_most_ten_without_gradient(distance):
    now = torch.tensor([distance], dtype=torch.float64).requires_grad_()
    estimate = kl_estimate(now, "k3")
    estimate.sum().backward()
    assert (estimate.item(), now.grad.item()) == (10.0, 0.0)
    loss = reference_kl(now, torch.zeros(1, dtype=torch.float64), estimator="k3")
    assert loss.metrics["policy/reference_kl"].item() <= 10.0
    assert loss.loss.item() <= 10.0


@pytest.mark.parametrize(("estimator", "slope"), [("k1", 0.0), ("k2", 0.274653), ("k3", 0.25)])
def test_expected_gradient_of_k1_is_zero_and_of_k2_that_of_the_divergence(estimator, slope):
    logits = torch.zeros(2, dtype=torch.float64).requires_grad_()
    reference = torch.tensor([0.25, 0.75], dtype=torch.float64).log()
    logprobs = logits.log_softmax(0)
    p = logprobs.detach().exp()
    (p * kl_estimate(logprobs - reference, estimator)).sum().backward()
    assert logits.grad[0].item() == pytest.approx(slope, abs=1e-6)
    true = torch.zeros(2, dtype=torch.float64).requires_grad_()
    exact = true.log_softmax(0)
    kl = (exact.exp() * (exact - reference)).sum()
    kl.backward()
    assert (kl.item(), true.grad[0].item()) == pytest.approx((0.143841, 0.274653), abs=1e-6)


def test_unknown_estimator_is_refused():
    with pytest.raises(ValueError, match="estimator must be one of k1, k2, k3, k3_as_k2, got 'k4'"):
        kl_estimate(torch.zeros(2), "k4")
