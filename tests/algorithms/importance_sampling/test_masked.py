import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from support.batches import of
from whetstone.algorithms import clipped, importance_weights, masked, truncated

LEARNER, SAMPLER = torch.tensor([0.4, 0.05, 0.9]).log(), torch.tensor([0.5, 0.005, 0.88]).log()


def test_worked_numbers():
    # IcePop with bounds .5 and 5: w .8, 10, 1.022727
    assert masked(LEARNER, SAMPLER, low=0.5, high=5.0).tolist() == pytest.approx([0.8, 0, 1.022727], rel=1e-5)


def test_token_beyond_the_bound_has_no_loss_and_no_gradient():
    learner = torch.tensor([math.log(0.33)], requires_grad=True)
    old, sampler = torch.tensor([math.log(0.3)]), torch.tensor([math.log(0.2)])
    loss = clipped(learner, old, torch.ones(1)).loss * masked(old, sampler, high=1.2)
    loss.sum().backward()
    assert (loss.item(), learner.grad.item()) == (0, 0)


def test_bounds_apply_to_the_weight_and_not_to_its_inverse():
    old, sampler = torch.tensor([0.6, 0.62, 1.4, 1.6]).log(), torch.zeros(4)
    assert [w > 0 for w in masked(old, sampler, low=0.61, high=1.5).tolist()] == [False, True, True, False]


def test_without_bounds_the_result_is_the_importance_weight():
    assert torch.equal(masked(LEARNER, SAMPLER, high=math.inf), importance_weights(LEARNER, SAMPLER))


@pytest.mark.parametrize("bounds", [{"low": 2.0, "high": 1.0}, {"low": 1.0, "high": 1.0}, {"low": -1.0}])
def test_reversed_bounds_are_refused(bounds):
    with pytest.raises(ValueError, match="low must be at least 0 and below high"):
        masked(LEARNER, SAMPLER, **bounds)


def test_decoupled_ppo_is_the_weighted_clipped_objective():
    # sampled at .2, .3 before the update, .33 now: ρ 1.1, w 1.5
    sampler, old = of(0.2).log(), of(0.3).log()
    for now, high, value, slope in ((0.33, 5.0, -1.65, -1.65), (0.33, 1.2, 0, 0), (0.39, 5.0, -1.8, 0)):
        learner = of(now).log().requires_grad_()
        loss = masked(old, sampler, high=high) * clipped(learner, old, of(1)).loss
        loss.sum().backward()
        assert (loss.item(), learner.grad.item()) == (pytest.approx(value), pytest.approx(slope))
    coupled = of(0.33).log().requires_grad_()
    loss = clipped(coupled, sampler, of(1)).loss
    loss.sum().backward()
    assert (loss.item(), coupled.grad.item()) == (pytest.approx(-1.2), 0)


def test_masked_tokens_stay_in_the_divisor():
    old, sampler, advantages = of(0.4, 0.05, 0.9).log(), of(0.5, 0.005, 0.88).log(), of(1, -1, 1)
    plain = clipped(old, old, advantages).loss
    losses = [
        (weight * plain).mean().item() for weight in (1.0, truncated(old, sampler), masked(old, sampler, low=0.5))
    ]
    assert losses == pytest.approx([-0.333333, 0.059091, -0.607576], abs=1e-6)


@given(st.lists(st.tuples(st.floats(-3, 0), st.floats(-3, 0)), min_size=1, max_size=6))
def test_nothing_is_masked_without_a_gap_or_without_bounds(pairs):
    old, sampler = of(*(a for a, _ in pairs)), of(*(b for _, b in pairs))
    assert torch.equal(masked(old, old), torch.ones_like(old))
    assert torch.allclose(masked(old, sampler, high=1e12), importance_weights(old, sampler))
    weights = masked(old, sampler, low=0.5, high=2.0)
    assert ((weights == 0) | (weights == importance_weights(old, sampler))).all()  # the other weights are unchanged
