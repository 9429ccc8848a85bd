"""Three estimates of a divergence from one sample."""

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
def test_three_estimators_and_their_slopes(reference, values, slopes):
    for estimator, value, slope in zip(("k1", "k2", "k3"), values, slopes, strict=True):
        now = torch.tensor([0.5], dtype=torch.float64).log().requires_grad_()
        found = kl_estimate(now - torch.tensor([reference]).double().log(), estimator)
        found.sum().backward()
        assert (found.item(), now.grad.item()) == (pytest.approx(value, abs=1e-6), pytest.approx(slope, abs=1e-6))


def test_one_may_be_reported_and_another_pull():
    now = torch.tensor([0.5], dtype=torch.float64).log().requires_grad_()
    found = kl_estimate(now - torch.tensor([0.25]).double().log(), "k3_as_k2")
    found.sum().backward()
    assert (found.item(), now.grad.item()) == (pytest.approx(0.193147, abs=1e-6), pytest.approx(0.693147, abs=1e-6))


@pytest.mark.parametrize("apart", [-1e4, -25.0, -15.0, 15.0, 1e4])
def test_one_token_far_away_is_worth_ten_at_most_and_pulls_at_nothing(apart):
    now = torch.tensor([apart], dtype=torch.float64).requires_grad_()
    found = kl_estimate(now, "k3")
    found.sum().backward()
    assert (found.item(), now.grad.item()) == (10.0, 0.0)
    said = reference_kl(now, torch.zeros(1, dtype=torch.float64), estimator="k3")
    assert said.metrics["policy/reference_kl"].item() <= 10.0
    assert said.loss.item() <= 10.0


@pytest.mark.parametrize(("estimator", "slope"), [("k1", 0.0), ("k2", 0.274653), ("k3", 0.25)])
def test_in_expectation_k1_pulls_at_nothing_and_k2_at_the_divergence(estimator, slope):
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


def test_an_estimate_that_there_is_not():
    with pytest.raises(ValueError, match="no estimate of that name: 'k4'"):
        kl_estimate(torch.zeros(2), "k4")
