import math

import pytest
import torch

from whetstone.algorithms import clipped, importance_weights, masked

LEARNER, SAMPLER = torch.tensor([0.4, 0.05, 0.9]).log(), torch.tensor([0.5, 0.005, 0.88]).log()


def test_worked_numbers():
    # IcePop with bounds .5 and 5: w .8, 10, 1.022727
    assert masked(LEARNER, SAMPLER, low=0.5, high=5.0).tolist() == pytest.approx([0.8, 0, 1.022727], rel=1e-5)


def test_a_token_beyond_the_bound_has_neither_loss_nor_gradient():
    learner = torch.tensor([math.log(0.33)], requires_grad=True)
    old, sampler = torch.tensor([math.log(0.3)]), torch.tensor([math.log(0.2)])
    loss = clipped(learner, old, torch.ones(1)).loss * masked(old, sampler, high=1.2)
    loss.sum().backward()
    assert (loss.item(), learner.grad.item()) == (0, 0)


def test_the_bounds_are_on_the_weight_itself_not_on_its_inverse():
    old, sampler = torch.tensor([0.6, 0.62, 1.4, 1.6]).log(), torch.zeros(4)
    assert [w > 0 for w in masked(old, sampler, low=0.61, high=1.5).tolist()] == [False, True, True, False]


def test_without_bounds_it_is_the_importance_weight():
    assert torch.equal(masked(LEARNER, SAMPLER, high=math.inf), importance_weights(LEARNER, SAMPLER))


@pytest.mark.parametrize("bounds", [{"low": 2.0, "high": 1.0}, {"low": -1.0}])
def test_bounds_that_are_no_interval_are_refused(bounds):
    with pytest.raises(ValueError, match="low is zero or more and below high"):
        masked(LEARNER, SAMPLER, **bounds)
