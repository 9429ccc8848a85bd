import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from whetstone.algorithms import clipped, importance_weights, truncated

LEARNER, SAMPLER = torch.tensor([0.4, 0.05, 0.9]).log(), torch.tensor([0.5, 0.005, 0.88]).log()


def test_worked_numbers():
    assert importance_weights(LEARNER, SAMPLER).tolist() == pytest.approx([0.8, 10, 1.022727], rel=1e-5)
    assert truncated(LEARNER, SAMPLER).tolist() == pytest.approx([0.8, 2, 1.022727], rel=1e-5)


def test_clipped_objective_with_truncated_weights_is_decoupled_ppo():
    """Check behavior policy .2, old .3, learner .33, A = 1, clip .2: loss −1.65, gradient −1.65."""
    learner = torch.tensor([math.log(0.33)], requires_grad=True)
    old, sampler = torch.tensor([math.log(0.3)]), torch.tensor([math.log(0.2)])
    loss = clipped(learner, old, torch.ones(1)).loss * importance_weights(old, sampler)
    loss.sum().backward()
    assert (loss.item(), learner.grad.item()) == pytest.approx((-1.65, -1.65), rel=1e-5)
    capped = clipped(learner, old, torch.ones(1)).loss * truncated(old, sampler, high=1.2)
    assert capped.item() == pytest.approx(-1.32, rel=1e-5)


def test_unsampled_tokens_have_weight_one():
    assert truncated(torch.tensor([-1.0]), torch.tensor([math.nan])).tolist() == [1.0]


@given(st.lists(st.tuples(st.floats(-1e4, 0), st.floats(-1e4, 0)), min_size=1), st.floats(0.5, 10))
def test_weights_are_finite_capped_and_without_gradient(pairs, high):
    old, sampler = (torch.tensor(column, requires_grad=True) for column in zip(*pairs, strict=True))
    weights = truncated(old, sampler.detach(), high=high)
    assert not weights.requires_grad
    assert torch.isfinite(weights).all()
    assert (weights <= high + 1e-5).all()
    pairs = zip(old.tolist(), sampler.tolist(), strict=True)
    naive = [min(high, math.exp(max(-20.0, min(20.0, a - b)))) for a, b in pairs]
    assert weights.tolist() == pytest.approx(naive, rel=1e-3)


def test_invalid_shapes_and_caps_are_refused():
    with pytest.raises(ValueError, match="old and sampler log-probs must have the same shape"):
        truncated(torch.zeros(2), torch.zeros(3))
    with pytest.raises(ValueError, match="high must be above 0"):
        truncated(torch.zeros(2), torch.zeros(2), high=0.0)
