import pytest
import torch

from whetstone.algorithms import reference_kl
from whetstone.algorithms.objectives import first_attempt_kl


def test_worked_numbers():
    # π ½, reference ¼: d = ln 2, k2 = 0.240227, gradient d; π ½, reference ¾: d = −0.405465, k2 = 0.082201
    logprobs = torch.tensor([0.5, 0.5], dtype=torch.float64).log().requires_grad_()
    result = reference_kl(logprobs, torch.tensor([0.25, 0.75], dtype=torch.float64).log())
    assert torch.allclose(result.loss, torch.tensor([0.240227, 0.082201]).double(), atol=1e-6)
    (gradient,) = torch.autograd.grad(result.loss.sum(), logprobs)
    assert torch.allclose(gradient, torch.tensor([0.693147, -0.405465]).double(), atol=1e-6)
    assert torch.allclose(result.metrics["policy/reference_kl"], torch.tensor([0.193147, 0.094535]).double(), atol=1e-6)


def test_expected_gradient_is_that_of_the_divergence():
    # P = (½, ½), R = (¼, ¾), by enumeration: the derivative of KL(P ‖ R) by logit 0 is 0.274653
    logits = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.25, 0.75], dtype=torch.float64).log()
    logprobs = torch.log_softmax(logits, 0)
    expected = (logprobs.exp().detach() * reference_kl(logprobs, reference).loss).sum()
    (gradient,) = torch.autograd.grad(expected, logits)
    assert gradient[0].item() == pytest.approx(0.274653, abs=1e-6)


def test_equal_policies_give_zero_and_extremes_stay_finite():
    logprobs = torch.tensor([-1.0, -1e4], requires_grad=True)
    result = reference_kl(logprobs, torch.tensor([-1.0, 0.0]))
    result.loss.sum().backward()
    assert result.loss.tolist() == [0.0, 200.0]
    assert logprobs.grad.tolist() == [0.0, 0.0]
    assert reference_kl(logprobs, torch.tensor([-1.0, -1e5])).loss.tolist() == [0.0, 200.0]
    with pytest.raises(ValueError, match=r"log-probs must have the same shape, got \[\[2\], \[3\]\]"):
        reference_kl(logprobs, torch.zeros(3))


def test_reference_and_metrics_have_no_gradient():
    now, reference = torch.tensor([-1.0]).requires_grad_(), torch.tensor([-2.0]).requires_grad_()
    result = reference_kl(now, reference)
    result.loss.sum().backward()
    assert reference.grad is None
    assert not result.metrics["policy/reference_kl"].requires_grad


def test_first_attempt_kl_is_the_divergence_of_the_first_attempt_only():
    now, reference = torch.tensor([-1.0, -2.0, -3.0]).double(), torch.tensor([-1.5, -1.0, -1.0]).double()
    result = first_attempt_kl(now, reference, torch.tensor([1.0, 1.0, 0.0]).double())
    assert result.loss.tolist() == [0.125, 0.5, 0.0]  # 0.5² / 2, 1² / 2
    assert torch.equal(
        result.metrics["policy/reference_kl"], reference_kl(now, reference).metrics["policy/reference_kl"]
    )
