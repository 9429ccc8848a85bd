import pytest
import torch

from whetstone.algorithms import reference_kl
from whetstone.algorithms.kl_estimate import kl_estimate


def test_worked_numbers():
    # π ½, reference ¼: d = ln 2, k2 = 0.240227, gradient d; π ½, reference ¾: d = −0.405465, k2 = 0.082201
    logprobs = torch.tensor([0.5, 0.5], dtype=torch.float64).log().requires_grad_()
    result = reference_kl(logprobs, torch.tensor([0.25, 0.75], dtype=torch.float64).log())
    assert torch.allclose(result.loss, torch.tensor([0.240227, 0.082201]).double(), atol=1e-6)
    (gradient,) = torch.autograd.grad(result.loss.sum(), logprobs)
    assert torch.allclose(gradient, torch.tensor([0.693147, -0.405465]).double(), atol=1e-6)
    assert torch.allclose(result.metrics["policy/reference_kl"], torch.tensor([0.193147, 0.094535]).double(), atol=1e-6)


def test_its_expected_gradient_is_that_of_the_divergence():
    # P = (½, ½), R = (¼, ¾), by enumeration: the derivative of KL(P ‖ R) by logit 0 is 0.274653
    logits = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.25, 0.75], dtype=torch.float64).log()
    logprobs = torch.log_softmax(logits, 0)
    expected = (logprobs.exp().detach() * reference_kl(logprobs, reference).loss).sum()
    (gradient,) = torch.autograd.grad(expected, logits)
    assert gradient[0].item() == pytest.approx(0.274653, abs=1e-6)


def test_equal_policies_give_nothing_and_extremes_stay_finite():
    logprobs = torch.tensor([-1.0, -1e4], requires_grad=True)
    result = reference_kl(logprobs, torch.tensor([-1.0, 0.0]))
    result.loss.sum().backward()
    assert result.loss.tolist() == [0.0, 200.0]
    assert logprobs.grad.tolist() == [0.0, 0.0]
    assert reference_kl(logprobs, torch.tensor([-1.0, -1e5])).loss.tolist() == [0.0, 200.0]
    with pytest.raises(ValueError, match=r"one reference log-prob per token: got \[\[2\], \[3\]\]"):
        reference_kl(logprobs, torch.zeros(3))


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


def test_neither_the_reference_nor_what_is_reported_has_a_gradient():
    now, reference = torch.tensor([-1.0]).requires_grad_(), torch.tensor([-2.0]).requires_grad_()
    found = reference_kl(now, reference)
    found.loss.sum().backward()
    assert reference.grad is None
    assert not found.metrics["policy/reference_kl"].requires_grad
