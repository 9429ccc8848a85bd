"""Critic heads on hidden states: initialization, target copies and gradients."""

import pytest
import torch

from whetstone.policies import Critic


def test_first_head_starts_at_zero_and_twin_head_is_random():
    critic = Critic(8, ("values", "twin_values"))
    values = critic(torch.ones(3, 8))
    assert values.shape == (3, 2)
    assert (values[:, 0] == 0).all()
    assert (values[:, 1] != 0).all()
    same_seed = Critic(8, ("values", "twin_values"))
    assert torch.equal(same_seed.value.weight, critic.value.weight)


def test_target_copies_follow_and_are_not_trained():
    critic = Critic(1, ("values", "slow_values"))
    critic.slow_weight.fill_(0.5)
    with torch.no_grad():
        critic.value.weight.fill_(0.8)
    critic.update_targets(0.1)
    assert critic(torch.ones(1, 1)).tolist() == [pytest.approx([0.8, 0.53])]
    assert {name for name, _ in critic.named_parameters()} == {"value.weight", "value.bias"}


def test_probabilities_and_detached_states():
    states = torch.ones(1, 4, requires_grad=True)
    assert Critic(4, probabilities=True)(states).item() == 0.5
    (through,) = torch.autograd.grad(Critic(4, ("twin_values",), detached=False)(states).sum(), states)
    assert through.abs().sum() > 0
    stopped = Critic(4, ("twin_values",))(states)
    assert torch.autograd.grad(stopped.sum(), states, allow_unused=True) == (None,)
