"""Log-probs, entropies and their gradients equal those of a plain softmax, for any chunk size."""

import pytest
import torch

from support.segments import segment
from whetstone.learning.packing import pack_segments
from whetstone.learning.token_outputs import TokenForward, TokenStatistics
from whetstone.policies import build_tiny


def plain(logits, row, target):
    logp = torch.log_softmax(logits, -1)
    return logp[row, target], -(logp.exp() * logp).sum(-1)


def test_statistics_and_their_gradients_equal_a_softmax():
    numbers = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 11, generator=numbers, dtype=torch.float64, requires_grad=True)
    row, target = torch.tensor([0, 1, 1, 1, 4]), torch.tensor([3, 0, 10, 10, 7])
    actual, expected = TokenStatistics.apply(logits.clone(), row, target), plain(logits, row, target)
    assert all(torch.allclose(a, b) for a, b in zip(actual, expected, strict=True))

    def pulled(logprobs, entropies):
        return logprobs.sin().sum() + (entropies * torch.arange(5)).cos().sum()

    (actual_gradient,) = torch.autograd.grad(pulled(*actual), logits)
    (expected_gradient,) = torch.autograd.grad(pulled(*expected), logits)
    assert torch.allclose(actual_gradient, expected_gradient, atol=1e-12)


def test_gradient_without_an_entropy_term():
    logits = torch.tensor([[1.0, 2.0, -1.0]], dtype=torch.float64, requires_grad=True)
    row, target = torch.tensor([0]), torch.tensor([1])
    (gradient,) = torch.autograd.grad(TokenStatistics.apply(logits.clone(), row, target)[0].sum(), logits)
    # onehot − softmax of (1, 2, −1)
    assert gradient[0].tolist() == pytest.approx([-0.259496, 0.294615, -0.035119], abs=1e-6)


def test_impossible_token_has_no_entropy_and_no_gradient():
    logits = torch.tensor([[0.0, 0.0, -torch.inf]], requires_grad=True)
    logprobs, entropies = TokenStatistics.apply(logits.clone(), torch.tensor([0]), torch.tensor([0]))
    assert entropies.item() == pytest.approx(0.693147, abs=1e-6)
    (logprobs.sum() + entropies.sum()).backward()
    assert logits.grad[0].tolist() == pytest.approx([0.5, -0.5, 0.0])


def outputs_and_gradients(logit_bytes):
    policy = build_tiny(["Compute 12"], hidden=16, heads=2, layers=2, intermediate=16, context_length=64, seed=3)
    forward = TokenForward(policy.model, logit_bytes=logit_bytes)
    batch = [segment([*range(20), k, k + 1, 7], [0] * 18 + [1] * 5) for k in range(5)]
    (micro,) = pack_segments(batch, token_budget=1000, device=torch.device("cpu"))
    outputs = forward(micro, 0.7)
    (outputs.logprobs.sin().sum() + outputs.entropies.sum()).backward()
    return outputs, [p.grad for p in policy.model.parameters()]


def test_recomputed_logits_equal_stored_logits():
    one_chunk, of_whole = outputs_and_gradients(2**28)
    cut, of_cut = outputs_and_gradients(4 * 400 * 3)  # three positions at a time
    assert torch.allclose(one_chunk.logprobs, cut.logprobs, atol=1e-6)
    assert torch.allclose(one_chunk.entropies, cut.entropies, atol=1e-6)
    for one, other in zip(of_whole, of_cut, strict=True):
        assert torch.allclose(one, other, atol=1e-6)
