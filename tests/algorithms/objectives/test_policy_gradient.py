"""REINFORCE."""

import pytest

from support.batches import of
from whetstone.algorithms import clipped, truncated
from whetstone.algorithms.objectives import policy_gradient


def test_gradient_is_minus_the_advantage():
    learner = of(-1, -2).requires_grad_()
    result = policy_gradient(learner, of(0.5, -3))
    result.loss.sum().backward()
    assert result.loss.tolist() == [0.5, -6]
    assert learner.grad.tolist() == [-0.5, 3]


def test_ppo_with_wide_clips_at_ratio_one_has_the_same_gradient():
    learner = of(-1, -2).requires_grad_()
    clipped(learner, learner.detach(), of(0.5, -3), clip_low=1.0, clip_high=1e9).loss.sum().backward()
    assert learner.grad.tolist() == [-0.5, 3]


def test_unbounded_weights_give_importance_weighted_reinforce():
    learner, old, sampler = of(-1.0).requires_grad_(), of(-1.0), of(-3.0)
    weight = truncated(old, sampler, high=1e9)
    (weight * policy_gradient(learner, of(1)).loss).sum().backward()
    assert learner.grad.item() == pytest.approx(-(2.718281828**2))
